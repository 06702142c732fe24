//! What the next interval brings (`load_predictor`).

use super::config::{LoadPredictor, PlannerConfig};

/// Predicts one figure.
#[derive(Clone, Debug)]
pub struct Predictor {
    kind: LoadPredictor,
    log1p: bool,
    min_points: u32,
    q: (f64, f64),
    r: f64,
    /// Observations so far; those before the first above zero are skipped.
    seen: u32,
    last: f64,
    /// Level and trend, with their covariance.
    state: (f64, f64),
    cov: [[f64; 2]; 2],
}

impl Predictor {
    /// A predictor that knows nothing.
    pub fn new(config: &PlannerConfig) -> Predictor {
        Predictor {
            kind: config.load_predictor,
            log1p: config.load_predictor_log1p,
            min_points: config.kalman_min_points,
            q: (config.kalman_q_level, config.kalman_q_trend),
            r: config.kalman_r,
            seen: 0,
            last: 0.0,
            state: (0.0, 0.0),
            cov: [[0.0; 2]; 2],
        }
    }

    /// The last interval had `value`. Idle time before the first traffic is skipped.
    pub fn add(&mut self, value: f64) {
        let value = if value.is_finite() {
            value.max(0.0)
        } else {
            0.0
        };
        if self.seen == 0 && value == 0.0 {
            return;
        }
        let z = if self.log1p { value.ln_1p() } else { value };
        self.last = value;
        self.seen += 1;
        if self.seen == 1 {
            self.state = (z, 0.0);
            self.cov = [[self.r, 0.0], [0.0, self.r]];
            return;
        }
        // Local linear trend: predict, then correct by the observation of the level.
        let (level, trend) = (self.state.0 + self.state.1, self.state.1);
        let [[a, b], [c, d]] = self.cov;
        let p = [[a + b + c + d + self.q.0, b + d], [c + d, d + self.q.1]];
        let gain_of = p[0][0] + self.r;
        let (k0, k1) = (p[0][0] / gain_of, p[1][0] / gain_of);
        let miss = z - level;
        self.state = (level + k0 * miss, trend + k1 * miss);
        self.cov = [
            [(1.0 - k0) * p[0][0], (1.0 - k0) * p[0][1]],
            [p[1][0] - k1 * p[0][0], p[1][1] - k1 * p[0][1]],
        ];
    }

    /// What the next interval is predicted to have; never below zero.
    pub fn foreseen(&self) -> f64 {
        if self.kind == LoadPredictor::Constant || self.seen < self.min_points {
            return self.last;
        }
        let z = self.state.0 + self.state.1;
        let value = if self.log1p { z.exp_m1() } else { z };
        value.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictor(kind: LoadPredictor) -> Predictor {
        Predictor::new(&PlannerConfig {
            load_predictor: kind,
            ..PlannerConfig::default()
        })
    }

    #[test]
    fn constant_repeats_the_last_value() {
        let mut p = predictor(LoadPredictor::Constant);
        assert_eq!(p.foreseen(), 0.0);
        p.add(30.0);
        p.add(10.0);
        assert_eq!(p.foreseen(), 10.0);
        p.add(f64::NAN);
        assert_eq!(p.foreseen(), 0.0);
    }

    #[test]
    fn kalman_follows_a_ramp_and_waits_for_its_points() {
        let mut p = predictor(LoadPredictor::Kalman);
        for i in 0..4 {
            p.add(f64::from(10 + 10 * i));
            assert_eq!(
                p.foreseen(),
                f64::from(10 + 10 * i),
                "fewer than kalman_min_points"
            );
        }
        for i in 4..60 {
            p.add(f64::from(10 + 10 * i));
        }
        assert!((p.foreseen() - 610.0).abs() < 1.0, "{}", p.foreseen());
        let mut falling = predictor(LoadPredictor::Kalman);
        for i in 0..30 {
            falling.add(f64::from((290 - 10 * i).max(0)));
        }
        assert_eq!(falling.foreseen(), 0.0, "never below zero");
    }

    #[test]
    fn idle_time_before_the_first_traffic_is_skipped() {
        let mut p = predictor(LoadPredictor::Kalman);
        for _ in 0..10 {
            p.add(0.0);
        }
        p.add(50.0);
        assert_eq!(p.foreseen(), 50.0);
    }
}

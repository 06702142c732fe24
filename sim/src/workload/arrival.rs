//! Open-loop arrival processes: renewal processes on a rate curve.
//!
//! Gaps of mean 1 (exponential, gamma or constant) are drawn in "expected requests" and mapped to time through
//! the inverse of the cumulative rate. With a constant rate that is the plain renewal process; with exponential
//! gaps and any rate it is the inhomogeneous Poisson process (time-change theorem: Brown, 1988).

use rand_distr::{Distribution, Exp1, Gamma};

use crate::kernel::rng::Stream;
use crate::kernel::time::SimTime;

/// Rate over time, linear between points, with jumps.
#[derive(Clone, Debug, PartialEq)]
pub struct RateCurve {
    pieces: Vec<Piece>,
    tail: Tail,
    /// Expected requests of all pieces.
    total: f64,
    /// Length of all pieces [s].
    span: f64,
}

/// A stretch on which the rate is linear.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// Start [s].
    start: f64,
    /// Length [s].
    length: f64,
    /// Rate at its start [1/s].
    rate: f64,
    /// Change of rate [1/s^2].
    slope: f64,
    /// Expected requests before it.
    before: f64,
}

/// What comes after the last piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tail {
    /// Nothing.
    End,
    /// The curve again.
    Repeat,
    /// A constant rate [1/s].
    Hold(f64),
}

impl RateCurve {
    /// A constant rate [1/s], above zero and finite, without end.
    pub fn constant(rate: f64) -> RateCurve {
        RateCurve {
            pieces: Vec::new(),
            tail: Tail::Hold(rate),
            total: 0.0,
            span: 0.0,
        }
    }

    /// A curve of pieces `(length [s], rate at its start, rate at its end [1/s])`, one after another.
    /// All values are finite and not negative; pieces of no length are left out.
    pub fn pieces(parts: &[(f64, f64, f64)], tail: Tail) -> RateCurve {
        let (mut start, mut before) = (0.0, 0.0);
        let mut pieces = Vec::with_capacity(parts.len());
        for &(length, from, to) in parts {
            if length <= 0.0 {
                continue;
            }
            pieces.push(Piece {
                start,
                length,
                rate: from,
                slope: (to - from) / length,
                before,
            });
            start += length;
            before += 0.5 * (from + to) * length;
        }
        RateCurve {
            pieces,
            tail,
            total: before,
            span: start,
        }
    }

    /// Expected requests of the curve up to its tail.
    pub fn expected(&self) -> f64 {
        self.total
    }
}

impl Piece {
    /// Time from the piece's start until `x` requests are expected of it [s].
    fn time_of(&self, x: f64) -> f64 {
        // x = rate t + slope t^2 / 2, in the form that does not cancel.
        let root = (self.rate * self.rate + 2.0 * self.slope * x)
            .max(0.0)
            .sqrt();
        let denominator = self.rate + root;
        if denominator <= 0.0 {
            // Nothing is asked of a rate that starts at zero: at once if it grows, at the end if it stays.
            return if self.slope > 0.0 { 0.0 } else { self.length };
        }
        (2.0 * x / denominator).min(self.length)
    }
}

/// Draws of mean 1 with a given coefficient of variation.
#[derive(Clone, Copy, Debug)]
pub enum UnitDraw {
    /// Always 1.
    Constant,
    /// Exponential.
    Exponential,
    /// Gamma.
    Gamma(Gamma<f64>),
}

impl UnitDraw {
    /// The draw whose coefficient of variation is `cv`: a gamma distribution of shape 1/cv^2
    /// (vLLM's `burstiness`, sources 8). `None` where `cv` is negative, not finite or above 100.
    pub fn new(cv: f64) -> Option<UnitDraw> {
        if !(0.0..=100.0).contains(&cv) {
            return None;
        }
        let shape = 1.0 / (cv * cv);
        if cv == 1.0 {
            Some(UnitDraw::Exponential)
        } else if shape < 1e8 {
            Gamma::new(shape, cv * cv).ok().map(UnitDraw::Gamma)
        } else {
            // Below a cv of 1e-4 the gaps are equal for all practical purposes.
            Some(UnitDraw::Constant)
        }
    }

    /// One draw, at least zero.
    pub fn draw(&self, rng: &mut Stream) -> f64 {
        match self {
            UnitDraw::Constant => 1.0,
            UnitDraw::Exponential => Exp1.sample(rng),
            UnitDraw::Gamma(g) => g.sample(rng),
        }
    }
}

/// An open-loop arrival process.
#[derive(Clone, Debug)]
pub struct OpenArrivals {
    curve: RateCurve,
    gaps: UnitDraw,
    rng: Stream,
    /// Expected requests up to the last arrival, within the present round of the curve.
    position: f64,
    /// Piece that holds it.
    piece: usize,
    /// Start of the present round [s].
    round: f64,
    first: bool,
}

impl OpenArrivals {
    /// Arrivals on `curve` with `gaps` between them. Constant gaps start with a request at once,
    /// others with a gap.
    pub fn new(curve: RateCurve, gaps: UnitDraw, rng: Stream) -> OpenArrivals {
        OpenArrivals {
            curve,
            gaps,
            rng,
            position: 0.0,
            piece: 0,
            round: 0.0,
            first: true,
        }
    }

    /// The next arrival; `None` once the curve has ended.
    pub fn next_arrival(&mut self) -> Option<SimTime> {
        if !(self.first && matches!(self.gaps, UnitDraw::Constant)) {
            self.position += self.gaps.draw(&mut self.rng);
        }
        self.first = false;
        if self.position > self.curve.total || self.curve.pieces.is_empty() {
            match self.curve.tail {
                Tail::End => return None,
                Tail::Hold(rate) => {
                    let t = self.curve.span + (self.position - self.curve.total) / rate;
                    return Some(SimTime::from_secs(t));
                }
                Tail::Repeat => {
                    let rounds = (self.position / self.curve.total).floor();
                    self.position -= rounds * self.curve.total;
                    self.round += rounds * self.curve.span;
                    self.piece = 0;
                }
            }
        }
        let pieces = &self.curve.pieces;
        while pieces
            .get(self.piece + 1)
            .is_some_and(|p| p.before < self.position)
        {
            self.piece += 1;
        }
        let p = &pieces[self.piece];
        let t = self.round + p.start + p.time_of((self.position - p.before).max(0.0));
        Some(SimTime::from_secs(t))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rng::stream;

    /// Gaps [s] of the first `n` arrivals after the first.
    fn gaps(curve: RateCurve, cv: f64, n: usize, seed: u64) -> Vec<f64> {
        let mut a = OpenArrivals::new(
            curve,
            UnitDraw::new(cv).unwrap(),
            stream(seed, "test.arrival"),
        );
        let times: Vec<f64> = (0..=n)
            .map(|_| a.next_arrival().unwrap().as_secs())
            .collect();
        times.windows(2).map(|w| w[1] - w[0]).collect()
    }

    fn mean_and_cv(x: &[f64]) -> (f64, f64) {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, var.sqrt() / mean)
    }

    #[test]
    fn gaps_have_the_asked_mean_and_cv_within_their_confidence_intervals() {
        let n = 40_000;
        for (seed, cv) in [(1, 0.25), (2, 0.5), (3, 1.0), (4, 2.0)] {
            let (mean, got) = mean_and_cv(&gaps(RateCurve::constant(4.0), cv, n, seed));
            // Standard error of the mean is cv / sqrt(n); of the cv of a gamma draw about
            // cv sqrt((1/2 + cv^2)/n) (delta method). Four of them: a false alarm in 16 000 seeds.
            let n = n as f64;
            assert!(
                (mean * 4.0 - 1.0).abs() < 4.0 * cv / n.sqrt(),
                "cv {cv}: mean {mean}"
            );
            let tolerance = 4.0 * cv * ((0.5 + cv * cv) / n).sqrt();
            assert!((got - cv).abs() < tolerance, "cv {cv}: got {got}");
        }
    }

    #[test]
    fn constant_gaps_start_at_once_and_do_not_drift() {
        let mut a = OpenArrivals::new(RateCurve::constant(3.0), UnitDraw::Constant, stream(1, "x"));
        let times: Vec<u64> = (0..3_000_001)
            .map(|_| a.next_arrival().unwrap().0)
            .collect();
        assert_eq!(times[0], 0);
        assert_eq!(times[1], 333_333_333);
        assert_eq!(times[3_000_000], 1_000_000_000_000_000);
    }

    #[test]
    fn a_ramp_expects_the_area_under_it() {
        // 0 to 10 req/s over 100 s: 500 requests; arrival k at t = sqrt(k / 0.05).
        let curve = RateCurve::pieces(&[(100.0, 0.0, 10.0)], Tail::End);
        assert_eq!(curve.expected(), 500.0);
        let mut a = OpenArrivals::new(curve, UnitDraw::Constant, stream(1, "x"));
        let times: Vec<f64> = std::iter::from_fn(|| a.next_arrival())
            .map(SimTime::as_secs)
            .collect();
        assert_eq!(times.len(), 501);
        for (k, t) in times.iter().enumerate() {
            assert!((t - (k as f64 / 0.05).sqrt()).abs() < 1e-6, "{k} {t}");
        }
    }

    #[test]
    fn a_pause_in_a_staircase_is_silent_and_a_repeated_curve_comes_again() {
        let curve = RateCurve::pieces(
            &[(10.0, 5.0, 5.0), (10.0, 0.0, 0.0), (10.0, 1.0, 1.0)],
            Tail::Repeat,
        );
        let mut a = OpenArrivals::new(curve, UnitDraw::Exponential, stream(7, "x"));
        let mut counts = [0u32; 3];
        let rounds = 400;
        loop {
            let t = a.next_arrival().unwrap().as_secs();
            if t >= 30.0 * f64::from(rounds) {
                break;
            }
            counts[((t % 30.0) / 10.0) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        // Poisson counts: standard deviation is the root of the mean.
        let expected = [50.0 * f64::from(rounds), 10.0 * f64::from(rounds)];
        for (got, want) in [counts[0], counts[2]].into_iter().zip(expected) {
            assert!(
                (f64::from(got) - want).abs() < 4.0 * want.sqrt(),
                "{got} {want}"
            );
        }
    }

    #[test]
    fn arrivals_never_go_back() {
        let curve = RateCurve::pieces(
            &[(1.0, 0.0, 100.0), (1.0, 100.0, 0.0), (0.5, 0.0, 0.0)],
            Tail::Repeat,
        );
        for cv in [0.0, 0.3, 1.0, 5.0] {
            let mut a =
                OpenArrivals::new(curve.clone(), UnitDraw::new(cv).unwrap(), stream(1, "x"));
            let mut last = SimTime::ZERO;
            for _ in 0..20_000 {
                let t = a.next_arrival().unwrap();
                assert!(t >= last);
                last = t;
            }
        }
    }

    #[test]
    fn an_impossible_cv_is_refused() {
        for cv in [-0.1, f64::NAN, f64::INFINITY, 100.5] {
            assert!(UnitDraw::new(cv).is_none());
        }
    }
}

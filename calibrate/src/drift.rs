//! How the speed of a measured machine drifts: the two Ornstein-Uhlenbeck processes of [`sim::cluster::drift`], from times that a
//! model predicts but for them.
//!
//! A sample is the logarithm of measured over predicted time of something that took from one instant to another; what it shows is the
//! average of the processes over that span, and a noise of its own (what the model does not know of the sample). That is a linear
//! state-space model, so the Kalman filter gives the likelihood exactly, at a cost linear in the samples. Levels of groups (loads)
//! are free: what one load's level is beside another's is not this module's.

use std::fmt;

use hwmodels::fitted::{param, spec};
use hwmodels::{Evidence, Profile};
use sim::cluster::drift::{SpeedDrift, Swing};
use sim::kernel::time::SimDuration;

/// One measured span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When it began [s].
    pub start: f64,
    /// How long it took [s].
    pub seconds: f64,
    /// Logarithm of measured over predicted time.
    pub off: f64,
}

/// One of the processes.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Process {
    /// Standard deviation of the logarithm of times [ratio].
    pub ratio: f64,
    /// Its standard error [ratio].
    pub ratio_error: f64,
    /// Time over which it correlates, by `exp(-t / seconds)` [s].
    pub seconds: f64,
}

/// How a machine's speed drifts.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Drift {
    /// The process, or the slower one of two.
    pub slow: Process,
    /// The faster one of two.
    pub fast: Option<Process>,
}

impl Drift {
    /// A machine that drifts so.
    pub fn of_machine(&self, machine: u32) -> SpeedDrift {
        let swing = |p: Process| Swing {
            ratio: p.ratio,
            time: SimDuration::from_secs(p.seconds),
        };
        SpeedDrift {
            swings: [Some(self.slow), self.fast].map(|p| p.map_or_else(Swing::default, swing)),
            machine,
        }
    }

    /// Writes it into `profile`.
    ///
    /// # Errors
    /// A drift that is no number.
    pub fn put_into(&self, profile: &mut Profile) -> Result<(), hwmodels::Error> {
        let processes = [
            (["noise.drift_ratio", "noise.drift_s"], Some(self.slow)),
            (["noise.burst_ratio", "noise.burst_s"], self.fast),
        ];
        for ([ratio, seconds], process) in processes {
            let Some(p) = process else { continue };
            for (name, value, error) in [
                (ratio, p.ratio, Some(p.ratio_error)),
                (seconds, p.seconds, None),
            ] {
                // A machine that is worse than any bound is as bad as the bound says.
                let most = spec(name).map_or(f64::INFINITY, |s| s.max);
                let entry = param(name, value.min(most), error, Evidence::Fitted)?;
                profile.params.insert(name.into(), entry);
            }
        }
        Ok(())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} % +- {:.1} over {:.2} s",
            100.0 * self.ratio,
            100.0 * self.ratio_error,
            self.seconds
        )
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the machine's speed drifts (standard deviation, over its correlation time): {}",
            self.slow
        )?;
        match self.fast {
            Some(fast) => write!(f, ", and {fast}"),
            None => Ok(()),
        }
    }
}

/// Courses of a machine's speed over which a prediction is averaged before it is compared with a measurement.
pub const COURSES: u64 = 8;

/// Fewest samples that say anything.
const LEAST: usize = 30;
/// Most samples that are looked at: the first of each group.
const MOST: usize = 20_000;
/// Samples farther than this from the middle count as this far [standard deviations of the typical ones].
const FARTHEST: f64 = 4.0;
/// Standard deviations per median absolute deviation of a normal distribution.
const PER_MAD: f64 = 1.4826;
/// By how much the logarithm of the likelihood must grow for a further process: two more parameters let it grow by 4.6 in
/// one of a hundred cases.
const EVIDENCE: f64 = 4.6;
/// A drift that is smaller is none [ratio].
const NEGLIGIBLE: f64 = 1e-3;
/// Correlation times are sought from this share of the mean sample on ...
const SHORTEST: f64 = 0.2;
/// ... to this share of the longest group: slower changes are a group's level.
const LONGEST: f64 = 0.2;
/// A sample's own variance over that of the processes: bounds of the search [natural logarithm].
const OWN: [f64; 2] = [-7.0, 5.0];
/// Share of the slow one of two processes in their variance: bounds of the search [log odds].
const SHARE: [f64; 2] = [-5.0, 5.0];
/// First and last step of the search in each logarithm.
const STRIDES: [f64; 2] = [1.0, 0.01];

/// Two processes and the samples' own noise, but for the size of all of it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Correlation times, the slow process first [s].
    times: [f64; 2],
    /// Shares of the processes in their variance [ratio].
    shares: [f64; 2],
    /// Variance of a sample's own noise over that of the processes [ratio].
    own: f64,
}

/// The drift that `groups` show, each in the order of its samples' starts, which do not overlap; none where there are too few samples or no
/// correlation among them.
pub fn estimate(groups: &[Vec<Sample>]) -> Option<Drift> {
    let most = MOST / groups.len().max(1);
    let usable = |s: &&Sample| s.off.is_finite() && s.seconds > 0.0;
    let groups: Vec<Vec<Sample>> = (groups.iter())
        .map(|g| g.iter().filter(usable).take(most).copied().collect())
        .filter(|g: &Vec<Sample>| g.len() > 2)
        .map(|g| tamed(&g))
        .collect();
    let n: usize = groups.iter().map(Vec::len).sum();
    if n < LEAST {
        return None;
    }
    let span = |g: &[Sample]| g[g.len() - 1].start + g[g.len() - 1].seconds - g[0].start;
    let all: f64 = groups.iter().map(|g| span(g)).sum();
    let busy: f64 = groups.iter().flatten().map(|s| s.seconds).sum();
    let longest = groups.iter().map(|g| span(g)).fold(0.0, f64::max);
    let (short, long) = ((SHORTEST * busy / n as f64).ln(), (LONGEST * longest).ln());
    if short >= long {
        return None;
    }
    // Logarithms of the slow time, of the samples' own noise, of the fast time; log odds of the slow process.
    let bounds = [[short, long], OWN, [short, long], SHARE];
    let one = |x: [f64; 4]| Shape {
        times: [x[0].exp(), x[0].exp()],
        shares: [1.0, 0.0],
        own: x[1].exp(),
    };
    let two = |x: [f64; 4]| {
        let share = 1.0 / (1.0 + (-x[3]).exp());
        Shape {
            times: [x[0].exp(), x[2].exp()],
            shares: [share, 1.0 - share],
            own: x[1].exp(),
        }
    };
    let likelihood = |s: &Shape| fit(&groups, s).likelihood;
    let none = fit(
        &groups,
        &Shape {
            own: 1e6,
            ..one([short; 4])
        },
    );
    let at = |share: f64| short + share * (long - short);
    let (x, single) = climb(
        &bounds,
        2,
        &[[at(0.3), -1.0, 0.0, 0.0], [at(0.7), -1.0, 0.0, 0.0]],
        |x| likelihood(&one(x)),
    );
    if single <= none.likelihood + EVIDENCE {
        return None;
    }
    let starts = [
        [x[0], x[1], (x[0] - 2.0).max(short), 0.0],
        [(x[0] + 2.0).min(long), x[1], x[0], 0.0],
    ];
    let (both, double) = climb(&bounds, 4, &starts, |x| likelihood(&two(x)));
    let shape = if double > single + EVIDENCE {
        two(both)
    } else {
        one(x)
    };
    let variance = fit(&groups, &shape).variance;
    if variance.sqrt() < NEGLIGIBLE {
        return None;
    }
    let process = |i: usize| {
        let ratio = (variance * shape.shares[i]).sqrt();
        Process {
            ratio,
            // Of the estimated variance of a process with correlation exp(-t / time) over a long span.
            ratio_error: ratio * (shape.times[i] / (2.0 * all)).sqrt(),
            seconds: shape.times[i],
        }
    };
    let (mut slow, mut fast) = (process(0), (shape.shares[1] > 0.0).then(|| process(1)));
    if let Some(other) = fast.filter(|f| f.seconds > slow.seconds) {
        fast = Some(std::mem::replace(&mut slow, other));
    }
    Some(Drift { slow, fast })
}

/// The samples with the far ones drawn in.
fn tamed(group: &[Sample]) -> Vec<Sample> {
    let median = |v: Vec<f64>| crate::statistics::median(v).unwrap_or(0.0);
    let middle = median(group.iter().map(|s| s.off).collect());
    let typical = PER_MAD * median(group.iter().map(|s| (s.off - middle).abs()).collect());
    let most = FARTHEST * typical;
    (group.iter())
        .map(|s| Sample {
            off: middle + (s.off - middle).clamp(-most, most),
            ..*s
        })
        .collect()
}

/// The best point that is reached uphill from one of `starts` by steps along the first `free` axes, and its height.
fn climb(
    bounds: &[[f64; 2]; 4],
    free: usize,
    starts: &[[f64; 4]],
    height: impl Fn([f64; 4]) -> f64,
) -> ([f64; 4], f64) {
    let mut best = (starts[0], f64::NEG_INFINITY);
    for start in starts {
        let mut here = (*start, height(*start));
        let mut stride = STRIDES[0];
        while stride >= STRIDES[1] {
            let before = here.1;
            for axis in 0..free {
                for step in [stride, -stride] {
                    let mut x = here.0;
                    x[axis] = (x[axis] + step).clamp(bounds[axis][0], bounds[axis][1]);
                    let h = height(x);
                    if h > here.1 {
                        here = (x, h);
                        break;
                    }
                }
            }
            if here.1 <= before {
                stride /= 2.0;
            }
        }
        if here.1 > best.1 {
            best = here;
        }
    }
    best
}

/// The best size of the processes of a shape.
#[derive(Clone, Copy, Debug)]
struct Fit {
    /// Variance of the processes together.
    variance: f64,
    /// Logarithm of the likelihood, up to a constant.
    likelihood: f64,
}

/// A process over a span of `seconds`, given its value at the start, in units of its variance.
struct Over {
    /// What is left of the value at the end.
    kept: f64,
    /// What the average over the span has of it.
    slope: f64,
    /// Variance of the average beside that.
    spread: f64,
    /// Covariance of the average and the value at the end beside that.
    joint: f64,
}

impl Over {
    fn new(seconds: f64, time: f64) -> Over {
        let l = (seconds / time).max(1e-9);
        let kept = (-l).exp();
        let lost = 1.0 - kept;
        if l < 1e-3 {
            return Over {
                kept,
                slope: 1.0 - l / 2.0,
                spread: 2.0 * l / 3.0,
                joint: l,
            };
        }
        Over {
            kept,
            slope: lost / l,
            spread: (2.0 * l - lost * (3.0 - kept)) / (l * l),
            joint: lost * lost / l,
        }
    }
}

/// The likelihood of `groups` for `shape`.
fn fit(groups: &[Vec<Sample>], shape: &Shape) -> Fit {
    let (mut squares, mut logs, mut n) = (0.0, 0.0, 0.0);
    let share = shape.shares;
    for group in groups {
        // The filter runs on the samples and on ones: that gives the best level.
        let (mut mean, mut ones) = ([0.0; 2], [0.0; 2]);
        // Variances of the processes, and their covariance.
        let (mut var, mut cov) = (share, 0.0);
        let mut end = group[0].start;
        // Of the innovations: samples by samples, by ones, ones by ones.
        let mut sums = [0.0; 3];
        for s in group {
            let gap = (s.start - end).max(0.0);
            if gap > 0.0 {
                let kept = shape.times.map(|t| (-gap / t).exp());
                for i in 0..2 {
                    mean[i] *= kept[i];
                    ones[i] *= kept[i];
                    var[i] = kept[i] * kept[i] * (var[i] - share[i]) + share[i];
                }
                cov *= kept[0] * kept[1];
            }
            end = s.start + s.seconds;
            let over = shape.times.map(|t| Over::new(s.seconds, t));
            // Covariance of each process at the start with the sample.
            let start = [
                var[0] * over[0].slope + cov * over[1].slope,
                var[1] * over[1].slope + cov * over[0].slope,
            ];
            let mut expected = shape.own;
            let (mut sample, mut one) = (s.off, 1.0);
            for i in 0..2 {
                expected += over[i].slope * start[i] + share[i] * over[i].spread;
                sample -= over[i].slope * mean[i];
                one -= over[i].slope * ones[i];
            }
            let mut gain = [0.0; 2];
            for i in 0..2 {
                let o = &over[i];
                gain[i] = (o.kept * start[i] + share[i] * o.joint) / expected;
                mean[i] = o.kept * mean[i] + gain[i] * sample;
                ones[i] = o.kept * ones[i] + gain[i] * one;
                var[i] =
                    o.kept * o.kept * (var[i] - share[i]) + share[i] - gain[i] * gain[i] * expected;
            }
            cov = over[0].kept * over[1].kept * cov - gain[0] * gain[1] * expected;
            sums[0] += sample * sample / expected;
            sums[1] += sample * one / expected;
            sums[2] += one * one / expected;
            logs += expected.ln();
        }
        squares += sums[0] - sums[1] * sums[1] / sums[2];
        logs += sums[2].ln();
        n += group.len() as f64 - 1.0;
    }
    let variance = squares / n;
    Fit {
        variance,
        likelihood: -0.5 * (n * variance.max(1e-300).ln() + logs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt as _;
    use rand_distr::StandardNormal;
    use sim::cluster::drift::Drift as Machine;
    use sim::kernel::rng::stream;
    use sim::kernel::time::SimTime;

    /// A swing of `ratio` over `time` [s].
    fn swing(ratio: f64, time: f64) -> Swing {
        Swing {
            ratio,
            time: SimDuration::from_secs(time),
        }
    }

    /// Groups of samples of about `seconds` on a machine that drifts, each with a noise of its own of deviation `own`.
    fn groups(swings: [Swing; 2], own: f64, seconds: f64, n: usize) -> Vec<Vec<Sample>> {
        (0..4)
            .map(|g| {
                let of = SpeedDrift { swings, machine: g };
                let mut machine = Machine::new(of, 7);
                let mut draws = stream(u64::from(g), "samples");
                let mut start = 0.0;
                (0..n)
                    .map(|_| {
                        let l = seconds * draws.random_range(0.5..1.5);
                        let points = 64;
                        let at = |k: i32| {
                            SimTime::from_secs(start + l * (f64::from(k) + 0.5) / f64::from(points))
                        };
                        let factors = (0..points).map(|k| machine.factor(at(k)).ln());
                        let mean = factors.sum::<f64>() / f64::from(points);
                        let noise: f64 = draws.sample(StandardNormal);
                        let s = Sample {
                            start,
                            seconds: l,
                            // The level of a group is free.
                            off: mean + own * noise + 0.3 * f64::from(g),
                        };
                        start += l + draws.random_range(0.0..0.2) * seconds;
                        s
                    })
                    .collect()
            })
            .collect()
    }

    const STEADY: Swing = Swing {
        ratio: 0.0,
        time: SimDuration::ZERO,
    };

    #[test]
    fn spread_and_time_of_a_drift_are_found_in_samples_shorter_and_longer_than_it() {
        for (time, seconds, n) in [(1.0, 0.05, 3000), (1.0, 0.3, 500), (0.3, 0.6, 500)] {
            for own in [0.005, 0.05] {
                let d = estimate(&groups([swing(0.1, time), STEADY], own, seconds, n)).unwrap();
                let what = format!("{time} s in samples of {seconds} s with {own}: {d:?}");
                assert_eq!(d.fast, None, "{what}");
                let d = d.slow;
                assert!((d.ratio / 0.1 - 1.0).abs() < 0.15, "{what}");
                assert!((d.seconds / time).ln().abs() < 0.35, "{what}");
                assert!(d.ratio_error > 0.0 && d.ratio_error < 0.015, "{what}");
            }
        }
    }

    #[test]
    fn two_processes_are_told_apart() {
        let d = estimate(&groups(
            [swing(0.06, 1.0), swing(0.1, 0.05)],
            0.01,
            0.01,
            5000,
        ))
        .unwrap();
        let fast = d.fast.unwrap();
        assert!((d.slow.ratio / 0.06 - 1.0).abs() < 0.2, "{d:?}");
        assert!(d.slow.seconds.ln().abs() < 0.8, "{d:?}");
        assert!((fast.ratio / 0.1 - 1.0).abs() < 0.1, "{d:?}");
        assert!((fast.seconds / 0.05).ln().abs() < 0.2, "{d:?}");
    }

    #[test]
    fn noise_of_each_sample_is_no_drift_and_neither_are_levels_or_few_samples() {
        assert_eq!(estimate(&groups([STEADY; 2], 0.1, 0.3, 400)), None);
        assert_eq!(
            estimate(&groups([swing(0.1, 1.0), STEADY], 0.01, 0.3, 6)),
            None
        );
        assert_eq!(estimate(&[]), None);
    }

    #[test]
    fn a_few_stalls_do_not_move_it() {
        let clean = groups([swing(0.1, 1.0), STEADY], 0.02, 0.3, 500);
        let mut dirty = clean.clone();
        for s in dirty.iter_mut().flat_map(|g| g.iter_mut().step_by(60)) {
            s.off += 2.0;
        }
        let [clean, dirty] = [clean, dirty].map(|g| estimate(&g).unwrap().slow);
        assert!(
            (dirty.ratio / clean.ratio - 1.0).abs() < 0.2,
            "{clean:?} {dirty:?}"
        );
    }
}

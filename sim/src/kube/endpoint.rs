//! A SageMaker endpoint's variant as a scalable target: CloudWatch's metrics, scaling policies, scheduled actions, forecasts.
//!
//! Metrics are worked out at the end of each of their periods and published `delay` later. Of several policies that would scale, the largest
//! capacity holds; a forecast is a floor under all of them. Source: Application Auto Scaling user guide, "How target tracking scaling works"
//! (several policies), "Scheduled scaling".

use std::collections::VecDeque;

use super::record::Controller;
use super::seen::{Seen, Told};
use super::spec::{EndpointSpec, Metered};
use crate::control::predictive::PredictiveScaling;
use crate::control::sagemaker::step_scaling::StepScaling;
use crate::control::sagemaker::target_tracking::TargetTracking;
use crate::control::sagemaker::{Decision, ScalableTarget};
use crate::control::scheduled::ScheduledScaling;
use crate::kernel::time::{SimDuration, SimTime};

const HOUR: SimDuration = SimDuration(3_600_000_000_000);

/// A metric of CloudWatch, one datapoint a period.
struct Meter {
    what: Metered,
    period: SimDuration,
    delay: SimDuration,
    /// End of the period under way.
    end: SimTime,
    /// Requests offered before it.
    before: u64,
    /// Starts of periods with their values, not published yet.
    coming: VecDeque<(SimTime, f64)>,
}

impl Meter {
    fn new(what: Metered, period: SimDuration, delay: SimDuration) -> Meter {
        Meter {
            what,
            period,
            delay,
            end: SimTime::ZERO + period,
            before: 0,
            coming: VecDeque::new(),
        }
    }

    /// When it has something to do: a period ends, or a datapoint is published.
    fn due(&self) -> SimTime {
        let published = self
            .coming
            .front()
            .map_or(SimTime::NEVER, |(start, _)| self.published_at(*start));
        self.end.min(published)
    }

    fn published_at(&self, start: SimTime) -> SimTime {
        start + self.period + self.delay
    }

    /// Closes the period that ends now.
    fn close(&mut self, seen: &Seen) {
        if self.end > seen.now {
            return;
        }
        let sent = seen.offered.saturating_sub(self.before);
        self.before = seen.offered;
        let start = SimTime(self.end.0 - self.period.0);
        if let Some(value) = self.what.value(sent, seen) {
            self.coming.push_back((start, value));
        }
        self.end += self.period;
    }

    /// Datapoints that are published now, and the start of the newest period of which one would be.
    fn publish(&mut self, now: SimTime, mut observe: impl FnMut(SimTime, f64)) -> Option<SimTime> {
        while let Some((start, value)) = self
            .coming
            .front()
            .copied()
            .filter(|(start, _)| self.published_at(*start) <= now)
        {
            self.coming.pop_front();
            observe(start, value);
        }
        let whole = (self.period + self.delay).0;
        let ago = now.0.checked_sub(whole)?;
        Some(SimTime(ago / self.period.0 * self.period.0))
    }
}

impl Metered {
    /// The value of a period in which `sent` requests were sent; none where there is no datapoint.
    fn value(self, sent: u64, seen: &Seen) -> Option<f64> {
        let of_each = |n: f64| (seen.ready > 0).then(|| n / f64::from(seen.ready));
        let in_hand = seen.offered.saturating_sub(seen.ended) as f64;
        match self {
            Metered::InvocationsPerInstance => of_each(sent as f64),
            Metered::ConcurrentRequestsPerModel => of_each(in_hand),
            Metered::ApproximateBacklogSizePerInstance => of_each(seen.held as f64),
            Metered::HasBacklogWithoutCapacity => {
                Some(f64::from(u8::from(seen.held > 0 && seen.ready == 0)))
            }
            Metered::NoCapacityInvocationFailures => {
                Some(if seen.ready == 0 { sent as f64 } else { 0.0 })
            }
        }
    }
}

enum Policy {
    Tracking(TargetTracking),
    Steps(StepScaling),
}

impl Policy {
    fn controller(&self) -> Controller {
        match self {
            Policy::Tracking(_) => Controller::TargetTracking,
            Policy::Steps(_) => Controller::StepScaling,
        }
    }

    fn observe(&mut self, start: SimTime, value: f64) {
        match self {
            Policy::Tracking(p) => p.observe(start, value),
            Policy::Steps(p) => p.observe(start, value),
        }
    }

    fn tick(&mut self, now: SimTime, last: SimTime, current: u32) -> Decision {
        match self {
            Policy::Tracking(p) => p.tick(now, last, current),
            Policy::Steps(p) => p.tick(now, last, current),
        }
    }

    fn set_target(&mut self, target: ScalableTarget) {
        match self {
            Policy::Tracking(p) => p.set_target(target),
            Policy::Steps(p) => p.set_target(target),
        }
    }
}

/// The scalable target at work.
pub(super) struct Endpoint {
    target: ScalableTarget,
    policies: Vec<(Meter, Policy)>,
    scheduled: Option<ScheduledScaling>,
    predictive: Option<PredictiveScaling>,
    /// End of the hour under way, and the requests offered before it.
    hour: (SimTime, u64),
    /// When the forecast is looked at next: at the hour and before it.
    look: SimTime,
    buffer: SimDuration,
}

impl Endpoint {
    /// # Errors
    /// The field that is wrong, by its real name.
    pub fn new(spec: &EndpointSpec) -> Result<Endpoint, String> {
        spec.target.check()?;
        let mut policies = Vec::new();
        if let Some(t) = &spec.target_tracking {
            let period = SimDuration::from_secs(f64::from(t.metric.period_s()));
            let what = Metered::of(t.metric);
            let meter = Meter::new(what, period, spec.delay_of(period));
            policies.push((meter, Policy::Tracking(TargetTracking::new(*t)?)));
        }
        for (what, s) in &spec.step_scaling {
            let policy = StepScaling::new(s.clone())?;
            let period = SimDuration::from_secs(s.alarm.period.secs());
            let meter = Meter::new(*what, period, spec.delay_of(period));
            policies.push((meter, Policy::Steps(policy)));
        }
        let scheduled = match &spec.scheduled {
            Some(s) => Some(ScheduledScaling::new(s.clone())?),
            None => None,
        };
        let predictive = match &spec.predictive {
            Some(s) => Some(PredictiveScaling::new(s.clone())?),
            None => None,
        };
        Ok(Endpoint {
            target: spec.target,
            policies,
            scheduled,
            predictive,
            hour: (SimTime::ZERO + HOUR, 0),
            look: SimTime::ZERO,
            buffer: spec
                .predictive
                .as_ref()
                .map_or(SimDuration::ZERO, |p| p.scheduling_buffer),
        })
    }

    /// When the next turn is due.
    pub fn due(&self) -> SimTime {
        let meters = self.policies.iter().map(|(m, _)| m.due());
        let scheduled = self.scheduled.as_ref().map(ScheduledScaling::due);
        let forecast = self.predictive.as_ref().map(|_| self.hour.0.min(self.look));
        meters
            .chain(scheduled)
            .chain(forecast)
            .min()
            .unwrap_or(SimTime::NEVER)
    }

    /// Registers the target anew (`[[change]]`); what it says, or why it is refused.
    pub fn set_bounds(&mut self, min: Option<u32>, max: Option<u32>) -> Result<(), String> {
        let target = ScalableTarget {
            min_capacity: min.unwrap_or(self.target.min_capacity),
            max_capacity: max.unwrap_or(self.target.max_capacity),
        };
        target.check()?;
        self.bound(target);
        Ok(())
    }

    /// The bounds in words.
    pub fn bounds(&self) -> (u32, u32) {
        (self.target.min_capacity, self.target.max_capacity)
    }

    fn bound(&mut self, target: ScalableTarget) {
        self.target = target;
        for (_, policy) in &mut self.policies {
            policy.set_target(target);
        }
    }

    /// Does what is due; capacities that are wanted are told in the order in which they hold.
    pub fn turn(&mut self, seen: &Seen) -> Vec<Told> {
        let mut told = Vec::new();
        let current = u32::try_from(seen.desired).unwrap_or(0);
        let mut now_wanted = current;
        if let Some(scheduled) = &mut self.scheduled
            && scheduled.due() <= seen.now
        {
            let d = scheduled.tick(seen.now, current);
            now_wanted = d.scale_to.unwrap_or(current);
            told.push(Told::of(Controller::Scheduled, d.scale_to, d.why));
            self.bound(ScalableTarget {
                min_capacity: d.min_capacity,
                max_capacity: d.max_capacity,
            });
        }
        let forecast = self.forecast(seen);
        let floor = forecast.as_ref().and_then(|(_, floor)| *floor);
        let (rows, wanted) = self.evaluate(seen, now_wanted);
        // A scale-in stops at the forecast.
        let wanted = wanted.map(|(i, w)| (i, w.max(floor.unwrap_or(0))));
        for (i, mut row) in rows.into_iter().enumerate() {
            if let Some((holds, to)) = wanted
                && holds == i
                && to != now_wanted
            {
                row.scale_to = i32::try_from(to).ok();
                now_wanted = to;
            }
            told.push(row);
        }
        if let Some((mut row, floor)) = forecast {
            if let Some(floor) = floor.filter(|f| *f > now_wanted) {
                row.why = format!("{now_wanted} to {floor}: {}", row.why);
                row.scale_to = i32::try_from(floor).ok();
            }
            told.push(row);
        }
        told
    }

    /// Publishes datapoints and asks the policies of which a period is new: what each says, and the index and capacity of the one that holds.
    fn evaluate(&mut self, seen: &Seen, current: u32) -> (Vec<Told>, Option<(usize, u32)>) {
        let mut rows = Vec::new();
        let mut wanted: Option<(usize, u32)> = None;
        for (meter, policy) in &mut self.policies {
            let is_due = meter.due() <= seen.now;
            meter.close(seen);
            let mut inputs = String::new();
            let last = meter.publish(seen.now, |start, value| {
                inputs = format!("{} {value:.4}", meter_name(policy));
                policy.observe(start, value);
            });
            let Some(last) = last.filter(|_| is_due) else {
                continue;
            };
            let d = policy.tick(seen.now, last, current);
            if let Some(to) = d.scale_to {
                // The largest capacity holds; the first of those that want the same.
                if wanted.is_none_or(|(_, other)| to > other) {
                    wanted = Some((rows.len(), to));
                }
            }
            let mut row = Told::of(policy.controller(), None, d.why);
            row.inputs = inputs;
            rows.push(row);
        }
        (rows, wanted)
    }

    fn forecast(&mut self, seen: &Seen) -> Option<(Told, Option<u32>)> {
        let predictive = self.predictive.as_mut()?;
        if self.hour.0 <= seen.now {
            let sent = seen.offered.saturating_sub(self.hour.1);
            predictive.observe(sent as f64 / 60.0);
            self.hour = (self.hour.0 + HOUR, seen.offered);
        }
        let f = predictive.floor(seen.now, self.target);
        if self.look <= seen.now {
            let before = SimTime(self.hour.0.0 - self.buffer.0);
            self.look = if before > seen.now {
                before
            } else {
                self.hour.0
            };
        }
        Some((Told::of(Controller::Predictive, None, f.why), f.floor))
    }
}

fn meter_name(policy: &Policy) -> &'static str {
    match policy {
        Policy::Tracking(_) => "metric",
        Policy::Steps(_) => "alarm metric",
    }
}

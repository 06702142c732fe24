//! Scheduled actions of Application Auto Scaling: at given times the bounds of a target change, and its capacity with them.
//!
//! Sources: Application Auto Scaling user guide, "Scheduled scaling", "Schedule scaling actions using cron expressions"; KEDA docs "Cron scaler" for the five-field
//! form. Times are UTC; time zones are not modelled.

use serde::{Deserialize, Serialize};

use crate::kernel::time::{SimDuration, SimTime};

const DAY_S: u64 = 86_400;

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// Year.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day, 1 to 31.
    pub day: u32,
}

impl Date {
    /// The day `days` after 1970-01-01 (H. Hinnant, "chrono-compatible low-level date algorithms").
    pub fn from_days(days: i64) -> Date {
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        Date {
            year: yoe + era * 400 + i64::from(month <= 2),
            month: month as u32,
            day: (doy - (153 * mp + 2) / 5 + 1) as u32,
        }
    }

    /// Days since 1970-01-01.
    pub fn days(self) -> i64 {
        let y = self.year - i64::from(self.month <= 2);
        let era = y.div_euclid(400);
        let yoe = y.rem_euclid(400);
        let m = i64::from(self.month);
        let doy = (153 * (if m > 2 { m - 3 } else { m + 9 }) + 2) / 5 + i64::from(self.day) - 1;
        era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
    }

    /// Reads `YYYY-MM-DD`.
    fn parse(text: &str) -> Option<Date> {
        let mut parts = text.splitn(3, '-').map(|p| p.parse::<u32>().ok());
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        let date = Date {
            year: i64::from(year),
            month,
            day,
        };
        (year <= 9999 && Date::from_days(date.days()) == date).then_some(date)
    }

    /// 0: Sunday.
    fn weekday(self) -> u32 {
        (self.days() + 4).rem_euclid(7) as u32
    }
}

/// One field of a cron expression: the values that it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field(Vec<u32>);

impl Field {
    /// Reads `*`, `?`, numbers, names, ranges, lists and steps; `names` begin at `low`.
    fn parse(text: &str, what: &str, low: u32, high: u32, names: &[&str]) -> Result<Field, String> {
        let wrong = |part: &str| format!("cron: {what}: `{part}` is not within {low} to {high}");
        let value = |t: &str| {
            let named = names.iter().position(|n| n.eq_ignore_ascii_case(t));
            let v = match named {
                Some(i) => low + i as u32,
                None => t.parse::<u32>().map_err(|_| wrong(t))?,
            };
            (low..=high)
                .contains(&v)
                .then_some(v)
                .ok_or_else(|| wrong(t))
        };
        let mut values = Vec::new();
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => (
                    range,
                    Some(
                        step.parse::<u32>()
                            .ok()
                            .filter(|s| *s > 0)
                            .ok_or_else(|| wrong(part))?,
                    ),
                ),
                None => (part, None),
            };
            let (from, to) = match range {
                "*" | "?" => (low, high),
                _ => match range.split_once('-') {
                    Some((a, b)) => (value(a)?, value(b)?),
                    // `5/15`: from 5 on.
                    None => (
                        value(range)?,
                        if step.is_some() { high } else { value(range)? },
                    ),
                },
            };
            if from > to {
                return Err(wrong(part));
            }
            values.extend((from..=to).step_by(step.unwrap_or(1) as usize));
        }
        values.sort_unstable();
        values.dedup();
        Ok(Field(values))
    }

    fn holds(&self, value: u32) -> bool {
        self.0.binary_search(&value).is_ok()
    }
}

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// A cron expression: five fields (minute, hour, day of month, month, day of week with 0 and 7 as Sunday), or the six of AWS (a year more, Sunday is 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    /// 0: Sunday.
    weekday: Field,
    year: Option<Field>,
    /// Both days are limited: five fields fire on either.
    either_day: bool,
}

impl Cron {
    /// Reads an expression without `cron(...)` around it. `L`, `W` and `#` are not known.
    ///
    /// # Errors
    /// The field that is wrong.
    pub fn parse(text: &str) -> Result<Cron, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let aws = match fields.len() {
            5 => false,
            6 => true,
            n => {
                return Err(format!(
                    "cron: five or six fields are needed, got {n} in `{text}`"
                ));
            }
        };
        let free = |f: &str| f == "*" || f == "?";
        let weekday = if aws {
            let from_one = Field::parse(fields[4], "day of week", 1, 7, &WEEKDAYS)?;
            Field(from_one.0.iter().map(|d| d - 1).collect())
        } else {
            // Names begin at 0; 7 is Sunday too.
            let text = Field::parse(fields[4], "day of week", 0, 7, &WEEKDAYS)?;
            let mut days: Vec<u32> = text.0.iter().map(|d| d % 7).collect();
            days.sort_unstable();
            days.dedup();
            Field(days)
        };
        if aws && !free(fields[2]) && !free(fields[4]) {
            return Err("cron: of day of month and day of week one must be `?`".to_owned());
        }
        Ok(Cron {
            minute: Field::parse(fields[0], "minute", 0, 59, &[])?,
            hour: Field::parse(fields[1], "hour", 0, 23, &[])?,
            day: Field::parse(fields[2], "day of month", 1, 31, &[])?,
            month: Field::parse(fields[3], "month", 1, 12, &MONTHS)?,
            weekday,
            year: match aws {
                true => Some(Field::parse(fields[5], "year", 1970, 2199, &[])?),
                false => None,
            },
            either_day: !aws && !free(fields[2]) && !free(fields[4]),
        })
    }

    fn on_day(&self, date: Date) -> bool {
        let (day, weekday) = (self.day.holds(date.day), self.weekday.holds(date.weekday()));
        let fits = if self.either_day {
            day || weekday
        } else {
            day && weekday
        };
        let year = u32::try_from(date.year).unwrap_or(0);
        fits && self.month.holds(date.month) && self.year.as_ref().is_none_or(|y| y.holds(year))
    }

    /// The first minute after `after` [s since 1970] at which it fires; none within 400 years.
    pub fn next(&self, after: u64) -> Option<u64> {
        let mut minute = after / 60 + 1;
        let last_day = minute / 1440 + 146_097;
        while minute / 1440 <= last_day {
            let (day, of_day) = (minute / 1440, (minute % 1440) as u32);
            if self.on_day(Date::from_days(day as i64)) {
                let fires = |m: &u32| self.hour.holds(m / 60) && self.minute.holds(m % 60);
                if let Some(m) = (of_day..1440).find(fires) {
                    return Some((day * 1440 + u64::from(m)) * 60);
                }
            }
            minute = (day + 1) * 1440;
        }
        None
    }
}

/// `Schedule`: when a scheduled action runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// `cron(...)`.
    Cron(Cron),
    /// `rate(...)`: every so often since the start.
    Rate(SimDuration),
    /// `at(...)`: once [s since 1970].
    At(u64),
}

impl Schedule {
    /// Reads `cron(0 8 * * ? *)`, `rate(5 minutes)`, `at(2026-11-22T08:00:00)`, or five fields of cron.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        let inside = |kind: &str| {
            text.strip_prefix(kind)?
                .strip_prefix('(')?
                .strip_suffix(')')
        };
        if let Some(cron) = inside("cron") {
            return Cron::parse(cron).map(Schedule::Cron);
        }
        if let Some(rate) = inside("rate") {
            let wrong = || format!("rate: write rate(5 minutes), got `{rate}`");
            let (value, unit) = rate.split_once(' ').ok_or_else(wrong)?;
            let unit_s = match unit.trim_end_matches('s') {
                "minute" => 60,
                "hour" => 3_600,
                "day" => DAY_S,
                _ => return Err(wrong()),
            };
            let value: u32 = value.parse().ok().filter(|v| *v > 0).ok_or_else(wrong)?;
            return Ok(Schedule::Rate(SimDuration::from_secs(
                f64::from(value) * unit_s as f64,
            )));
        }
        if let Some(at) = inside("at") {
            let wrong = || format!("at: write at(2026-11-22T08:00:00), got `{at}`");
            let (date, time) = at.split_once('T').ok_or_else(wrong)?;
            let days = Date::parse(date).ok_or_else(wrong)?.days();
            let parts: Vec<u64> = time
                .split(':')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|_| wrong())?;
            let [hour, minute, second] = parts[..] else {
                return Err(wrong());
            };
            if hour > 23 || minute > 59 || second > 59 || days < 0 {
                return Err(wrong());
            }
            return Ok(Schedule::At(
                days as u64 * DAY_S + hour * 3_600 + minute * 60 + second,
            ));
        }
        Cron::parse(text).map(Schedule::Cron)
    }
}

/// `PutScheduledAction`, as far as it decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduledAction {
    /// `ScheduledActionName`.
    pub name: String,
    /// `Schedule`, see [`Schedule::parse`].
    pub schedule: String,
    /// `ScalableTargetAction.MinCapacity`; none: as it was.
    pub min_capacity: Option<u32>,
    /// `ScalableTargetAction.MaxCapacity`; none: as it was.
    pub max_capacity: Option<u32>,
}

/// The actions of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduledScalingSpec {
    /// The time of day, and the day, at which the run begins, `2026-11-22T08:00:00`.
    pub starts_at: String,
    /// `MinCapacity` at the start.
    pub min_capacity: u32,
    /// `MaxCapacity` at the start.
    pub max_capacity: u32,
    /// Actions; of several at one instant the last holds.
    pub actions: Vec<ScheduledAction>,
}

/// What a tick decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// `MinCapacity` from now on.
    pub min_capacity: u32,
    /// `MaxCapacity` from now on.
    pub max_capacity: u32,
    /// The new capacity, where it is to be written.
    pub scale_to: Option<u32>,
    /// Why, in words.
    pub why: String,
}

/// Scheduled scaling of one target, and what it remembers.
#[derive(Clone, Debug)]
pub struct ScheduledScaling {
    spec: ScheduledScalingSpec,
    schedules: Vec<Schedule>,
    /// Seconds between 1970 and the start of the run.
    epoch: u64,
    /// When each action runs next.
    next: Vec<SimTime>,
    min: u32,
    max: u32,
}

impl ScheduledScaling {
    /// # Errors
    /// The action and field that are wrong.
    pub fn new(spec: ScheduledScalingSpec) -> Result<ScheduledScaling, String> {
        let Schedule::At(epoch) = Schedule::parse(&format!("at({})", spec.starts_at))
            .map_err(|e| format!("starts_at: {e}"))?
        else {
            return Err("starts_at: not an instant".to_owned());
        };
        let (min, max) = (spec.min_capacity, spec.max_capacity);
        if min > max {
            return Err(format!(
                "MinCapacity ({min}) must be at most MaxCapacity ({max})"
            ));
        }
        let mut schedules = Vec::new();
        for a in &spec.actions {
            if a.min_capacity.is_none() && a.max_capacity.is_none() {
                return Err(format!(
                    "action {}: MinCapacity or MaxCapacity is needed",
                    a.name
                ));
            }
            if let (Some(low), Some(high)) = (a.min_capacity, a.max_capacity)
                && low > high
            {
                return Err(format!(
                    "action {}: MinCapacity ({low}) must be at most MaxCapacity ({high})",
                    a.name
                ));
            }
            schedules
                .push(Schedule::parse(&a.schedule).map_err(|e| format!("action {}: {e}", a.name))?);
        }
        let mut s = ScheduledScaling {
            min: spec.min_capacity,
            max: spec.max_capacity,
            next: Vec::new(),
            spec,
            schedules,
            epoch,
        };
        s.next = (0..s.schedules.len()).map(|i| s.after(i, None)).collect();
        Ok(s)
    }

    /// When action `i` runs for the first time, or the next time after `last`.
    fn after(&self, i: usize, last: Option<SimTime>) -> SimTime {
        let in_run = |at: u64| {
            at.checked_sub(self.epoch)
                .map(|s| SimTime(s.saturating_mul(1_000_000_000)))
        };
        match (&self.schedules[i], last) {
            (Schedule::Cron(cron), None) => {
                cron.next(self.epoch.saturating_sub(1)).and_then(in_run)
            }
            (Schedule::Cron(cron), Some(at)) => cron
                .next(self.epoch + at.0 / 1_000_000_000)
                .and_then(in_run),
            (Schedule::Rate(every), None) => Some(SimTime::ZERO + *every),
            (Schedule::Rate(every), Some(at)) => Some(at + *every),
            (Schedule::At(at), None) => in_run(*at),
            (Schedule::At(_), Some(_)) => None,
        }
        .unwrap_or(SimTime::NEVER)
    }

    /// When the next action runs.
    pub fn due(&self) -> SimTime {
        self.next.iter().copied().min().unwrap_or(SimTime::NEVER)
    }

    /// Runs the actions that are due, and puts `current` within the bounds that they leave.
    pub fn tick(&mut self, now: SimTime, current: u32) -> Decision {
        let mut ran = Vec::new();
        while self.due() <= now {
            let at = self.due();
            for i in 0..self.next.len() {
                if self.next[i] != at {
                    continue;
                }
                let action = &self.spec.actions[i];
                self.min = action.min_capacity.unwrap_or(self.min);
                self.max = action.max_capacity.unwrap_or(self.max);
                // An action that sets one bound past the other moves that one too.
                if self.min > self.max {
                    match action.min_capacity {
                        Some(_) => self.max = self.min,
                        None => self.min = self.max,
                    }
                }
                let late = now.since(at);
                ran.push(match late > SimDuration::ZERO {
                    true => format!("{} ({:.0} s late)", action.name, late.as_secs()),
                    false => action.name.clone(),
                });
                self.next[i] = self.after(i, Some(at));
            }
        }
        let wanted = current.clamp(self.min, self.max);
        let bounds = format!("MinCapacity {}, MaxCapacity {}", self.min, self.max);
        let by = match ran.is_empty() {
            true => String::new(),
            false => format!(" by {}", ran.join(", ")),
        };
        Decision {
            min_capacity: self.min,
            max_capacity: self.max,
            scale_to: (wanted != current).then_some(wanted),
            why: match wanted == current {
                true => format!("kept {current}: {bounds}{by}"),
                false => format!("{current} to {wanted}: {bounds}{by}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(text: &str) -> u64 {
        match Schedule::parse(&format!("at({text})")) {
            Ok(Schedule::At(at)) => at,
            other => panic!("{other:?}"),
        }
    }

    fn next(cron: &str, after: &str) -> Option<u64> {
        Cron::parse(cron).expect(cron).next(secs(after))
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(secs("1970-01-01T00:00:00"), 0);
        assert_eq!(secs("2026-11-22T13:20:34"), 1_795_353_634);
        assert_eq!(
            Date::parse("2026-11-22").map(Date::weekday),
            Some(0),
            "a Sunday"
        );
        assert_eq!(
            Date::parse("2024-02-29").map(|d| Date::from_days(d.days() + 1).month),
            Some(3)
        );
        assert_eq!(Date::parse("2023-02-29"), None);
    }

    #[test]
    fn cron_fires_at_the_next_minute_that_fits() {
        let at = |t: &str| Some(secs(t));
        assert_eq!(
            next("0 8 * * *", "2026-11-22T08:00:00"),
            at("2026-11-23T08:00:00")
        );
        assert_eq!(
            next("*/15 * * * *", "2026-11-22T08:01:10"),
            at("2026-11-22T08:15:00")
        );
        assert_eq!(
            next("30 9 * * MON-FRI", "2026-11-20T10:00:00"),
            at("2026-11-23T09:30:00"),
            "over the weekend"
        );
        assert_eq!(
            next("0 0 29 2 *", "2026-11-22T00:00:00"),
            at("2028-02-29T00:00:00")
        );
        assert_eq!(
            next("5/20 0 * * *", "2026-11-22T00:06:00"),
            at("2026-11-22T00:25:00")
        );
        assert_eq!(next("0 0 31 2 *", "2026-11-22T00:00:00"), None);
        // Either day where both are limited, as cron has it since long.
        assert_eq!(
            next("0 0 1 * 1", "2026-11-22T00:00:00"),
            at("2026-11-23T00:00:00")
        );
        assert_eq!(
            next("0 0 * * 7", "2026-11-22T00:00:00"),
            at("2026-11-29T00:00:00"),
            "7 is Sunday"
        );
    }

    #[test]
    fn the_six_fields_of_aws_have_sunday_as_1_and_a_year() {
        let at = |t: &str| Some(secs(t));
        assert_eq!(
            next("0 12 ? * 1 *", "2026-11-22T13:00:00"),
            at("2026-11-29T12:00:00")
        );
        assert_eq!(
            next("0 12 1 1 ? 2030", "2026-11-22T13:00:00"),
            at("2030-01-01T12:00:00")
        );
        assert!(
            Cron::parse("0 12 1 * 1 *")
                .expect_err("both days")
                .contains('?')
        );
    }

    #[test]
    fn what_is_no_schedule_names_its_field() {
        for (text, because) in [
            ("cron(60 * * * ? *)", "minute"),
            ("cron(0 24 * * ? *)", "hour"),
            ("0 0 0 * *", "day of month"),
            ("0 0 * 13 *", "month"),
            ("0 0 * * 8", "day of week"),
            ("0 0 * *", "five or six"),
            ("0/0 * * * *", "minute"),
            ("9-5 * * * *", "minute"),
            ("rate(0 minutes)", "rate"),
            ("rate(5 weeks)", "rate"),
            ("at(tomorrow)", "at"),
            ("at(2026-11-31T00:00:00)", "at"),
        ] {
            let message = Schedule::parse(text).expect_err(text);
            assert!(message.contains(because), "{text}: {message}");
        }
        assert_eq!(
            Schedule::parse("rate(1 hour)"),
            Ok(Schedule::Rate(SimDuration(3_600_000_000_000)))
        );
    }

    fn action(name: &str, schedule: &str, min: Option<u32>, max: Option<u32>) -> ScheduledAction {
        ScheduledAction {
            name: name.to_owned(),
            schedule: schedule.to_owned(),
            min_capacity: min,
            max_capacity: max,
        }
    }

    fn office_hours() -> ScheduledScalingSpec {
        ScheduledScalingSpec {
            starts_at: "2026-11-23T07:00:00".to_owned(),
            min_capacity: 1,
            max_capacity: 10,
            actions: vec![
                action("morning", "cron(0 8 ? * MON-FRI *)", Some(4), None),
                action("evening", "cron(0 18 ? * MON-FRI *)", Some(0), Some(2)),
            ],
        }
    }

    #[test]
    fn bounds_change_at_their_times_and_move_the_capacity() {
        let mut s = ScheduledScaling::new(office_hours()).expect("right");
        let hour = |h: u64| SimTime(h * 3_600_000_000_000);
        assert_eq!(s.due(), hour(1));
        assert_eq!(s.tick(SimTime::ZERO, 2).scale_to, None);
        let morning = s.tick(hour(1), 2);
        assert_eq!((morning.scale_to, morning.max_capacity), (Some(4), 10));
        assert_eq!(
            morning.why,
            "2 to 4: MinCapacity 4, MaxCapacity 10 by morning"
        );
        assert_eq!(
            s.tick(hour(2), 7).scale_to,
            None,
            "policies may scale in between"
        );
        assert_eq!(s.due(), hour(11));
        assert_eq!(s.tick(hour(11), 7).scale_to, Some(2));
        assert_eq!(
            s.tick(hour(12), 1).scale_to,
            None,
            "down to none is the policies' to do"
        );
        assert_eq!(s.due(), hour(25));
    }

    #[test]
    fn a_late_tick_runs_what_it_missed_in_order() {
        let mut s = ScheduledScaling::new(office_hours()).expect("right");
        let late = s.tick(SimTime(12 * 3_600_000_000_000), 5);
        assert_eq!(
            (late.min_capacity, late.max_capacity, late.scale_to),
            (0, 2, Some(2))
        );
        assert!(
            late.why
                .contains("morning (39600 s late), evening (3600 s late)"),
            "{}",
            late.why
        );
    }

    #[test]
    fn a_bound_that_passes_the_other_moves_it() {
        let mut spec = office_hours();
        spec.actions = vec![action("up", "rate(1 minute)", Some(30), None)];
        let mut s = ScheduledScaling::new(spec).expect("right");
        let up = s.tick(SimTime(60_000_000_000), 3);
        assert_eq!(
            (up.min_capacity, up.max_capacity, up.scale_to),
            (30, 30, Some(30))
        );
    }

    #[test]
    fn wrong_specs_name_the_action() {
        let refused = |change: fn(&mut ScheduledScalingSpec), because: &str| {
            let mut spec = office_hours();
            change(&mut spec);
            let message = ScheduledScaling::new(spec).expect_err(because);
            assert!(message.contains(because), "{message}");
        };
        refused(|s| s.starts_at = "monday".to_owned(), "starts_at");
        refused(|s| s.min_capacity = 11, "MinCapacity (11)");
        refused(|s| s.actions[0].min_capacity = None, "action morning");
        refused(
            |s| s.actions[1].min_capacity = Some(3),
            "action evening: MinCapacity (3)",
        );
        refused(
            |s| s.actions[1].schedule = "cron(x)".to_owned(),
            "action evening: cron",
        );
    }
}

//! A request's life step by step: in which steps its prompt was prefilled, and each token's gap with its cause.
//!
//! A record has the steps of a replica, not who was in them. A request that decodes is in each step of its replica that decodes, so the ends
//! of those steps are its tokens, as long as there are as many of them as it has tokens; where there are more, it was out of some of them.

use std::ops::Range;

use sim::record::RequestRow;
use store::StepSpan;

use crate::format;
use crate::run_data::{RunData, transfer};
use crate::theme;

/// Chunks that are told one by one.
const MOST_CHUNKS: usize = 5;

/// A step in which the prompt was prefilled, alone or with others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunk {
    /// Start of the step [ns].
    pub at: u64,
    /// How long it took [ns].
    pub took: u64,
    /// Prompt tokens in it [tokens].
    pub tokens: u64,
    /// Prompts that they were of.
    pub prompts: u64,
    /// What bound it, as an index of `theme::CAUSE_NAMES`.
    pub cause: Option<usize>,
}

/// The time before a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Which token it is; the first has number 1 and no gap.
    pub token: u32,
    /// When the client had it [ns].
    pub at: u64,
    /// Since the one before [ns].
    pub gap: u64,
    /// What most of it went to, as an index of `theme::CAUSE_NAMES`; none: no step was under way.
    pub cause: Option<usize>,
    /// Prompt tokens of others that were prefilled in it [tokens].
    pub prefilled: u64,
    /// Time without a step [ns].
    pub idle: u64,
}

/// A request's life.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Life {
    /// Steps in which its prompt was prefilled.
    pub chunks: Vec<Chunk>,
    /// The gaps before its tokens; where it was out of some steps, those of the steps in which it may have been.
    pub gaps: Vec<Gap>,
    /// Tokens after the first.
    pub tokens: u32,
}

impl Life {
    /// Whether each gap is that of one token.
    pub fn is_exact(&self) -> bool {
        self.gaps.len() == self.tokens as usize
    }

    /// The `n` longest gaps, longest first.
    pub fn longest(&self, n: usize) -> Vec<Gap> {
        let mut all = self.gaps.clone();
        all.sort_by_key(|g| (std::cmp::Reverse(g.gap), g.token));
        all.truncate(n);
        all
    }
}

/// The life of `r`; none where the record has no single steps, or it got no token.
pub fn of(run: &RunData, r: &RequestRow) -> Option<Life> {
    let info = &run.record.info;
    let level = run.record.steps.first().filter(|_| info.step_merge == 1)?;
    let end = r.end.0.min(info.end);
    if r.first_token.0 > end {
        return None;
    }
    let moved = transfer(&run.record, r.id);
    let prefilled_on = moved.map_or(r.replica, |t| t.from) as usize;
    let decoded_on = moved.map_or(r.replica, |t| t.to) as usize;
    let within = |replica, from: u64, to: u64| {
        let window: Range<u64> = from.min(to)..to.saturating_add(1);
        let steps = level.within(replica, window).iter();
        steps.filter(move |s: &StepSpan| s.end > from && s.end <= to)
    };
    let before = within(prefilled_on, r.first_scheduled.0, r.first_token.0);
    let chunks: Vec<StepSpan> = before.filter(|s| s.prefill_tokens > 0).collect();
    // From the end of a step until the client has its token.
    let way = chunks.last().map_or(0, |s| r.first_token.0 - s.end);
    let from = moved.map_or(r.first_token.0 - way, |t| t.ended);
    let mut steps: Vec<StepSpan> = within(decoded_on, from, end.saturating_sub(way)).collect();
    let tokens = r.output_tokens.saturating_sub(1);
    if moved.is_some() && r.preemptions == 0 {
        // It comes while steps are under way, and is in all from then on: the last ones are its own.
        let decodes = steps.iter().filter(|s| s.decode_tokens > 0).count();
        let others = decodes.saturating_sub(tokens as usize);
        let own = |s: &StepSpan| s.decode_tokens > 0;
        let first = (0..steps.len()).filter(|i| own(&steps[*i])).nth(others);
        steps.drain(..first.unwrap_or(0));
    }
    Some(Life {
        chunks: chunks.iter().map(chunk).collect(),
        gaps: gaps(&steps, r.first_token.0, way),
        tokens,
    })
}

fn cause(parts: &[f32; 6]) -> Option<usize> {
    let most = parts.iter().copied().fold(0.0, f32::max);
    parts.iter().position(|p| *p == most && most > 0.0)
}

fn chunk(s: &StepSpan) -> Chunk {
    Chunk {
        at: s.start,
        took: s.end - s.start,
        tokens: s.prefill_tokens,
        prompts: s.prefill_seqs,
        cause: cause(&s.parts),
    }
}

/// The gaps between the ends of steps that decode; what other steps took in between counts for the gap that they lie in.
fn gaps(steps: &[StepSpan], first_token: u64, way: u64) -> Vec<Gap> {
    let mut out: Vec<Gap> = Vec::new();
    let (mut last, mut parts, mut prefilled, mut busy) = (first_token, [0.0f32; 6], 0, 0);
    for s in steps {
        for (sum, p) in parts.iter_mut().zip(s.parts) {
            *sum += p;
        }
        prefilled += s.prefill_tokens;
        busy += s.end - s.start;
        if s.decode_tokens == 0 {
            continue;
        }
        let at = s.end + way;
        let gap = at.saturating_sub(last);
        out.push(Gap {
            token: out.len() as u32 + 2,
            at,
            gap,
            cause: cause(&parts),
            prefilled,
            idle: gap.saturating_sub(busy),
        });
        (last, parts, prefilled, busy) = (at, [0.0; 6], 0, 0);
    }
    out
}

/// What a gap went to, in words.
pub fn because(gap: &Gap) -> String {
    let mut words = gap
        .cause
        .map_or("no step", |c| theme::CAUSE_NAMES[c])
        .to_owned();
    if gap.prefilled > 0 {
        let tokens = format::count(gap.prefilled);
        words += &format!(", with {tokens} prompt tokens of others");
    }
    // What is left of rounding is no wait.
    if gap.idle > gap.gap / 20 {
        words += &format!(", {} without a step", format::duration(gap.idle as f64));
    }
    words
}

/// The prefill in words, a line per step; of many steps the first ones.
pub fn prefill(life: &Life) -> Vec<String> {
    let n = life.chunks.len();
    if n == 0 {
        return Vec::new();
    }
    let steps = if n == 1 {
        "1 step"
    } else {
        &format!("{n} steps")
    };
    let mut out = vec![format!("Its prompt was prefilled in {steps}:")];
    for c in life.chunks.iter().take(MOST_CHUNKS) {
        let whose = match c.prompts {
            0 | 1 => String::new(),
            n => format!(" of {n} prompts"),
        };
        let cause = c.cause.map_or(String::new(), |c| {
            format!(", bound by {}", theme::CAUSE_NAMES[c])
        });
        out.push(format!(
            "   {} tokens{whose} at {}, for {}{cause}",
            format::count(c.tokens),
            format::instant(c.at),
            format::duration(c.took as f64)
        ));
    }
    if n > MOST_CHUNKS {
        out.push(format!("   and {} more", n - MOST_CHUNKS));
    }
    out
}

/// The decode in words.
pub fn decode(life: &Life) -> Option<String> {
    let (n, tokens) = (life.gaps.len(), life.tokens as usize);
    if tokens == 0 {
        return None;
    }
    Some(match n.cmp(&tokens) {
        std::cmp::Ordering::Equal => "Each step of its replica gave it a token:".to_owned(),
        std::cmp::Ordering::Greater => format!(
            "Its replica decoded in {n} steps meanwhile; it was out of {} of them. The gaps between those steps:",
            n - tokens
        ),
        std::cmp::Ordering::Less => {
            format!(
                "It got {tokens} tokens in {n} steps, several at a time. The gaps between those steps:"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn every_token_has_its_gap_and_the_gaps_add_up() {
        let run = small();
        let mut exact = 0;
        for r in run.record.requests.iter().filter(|r| r.preemptions == 0) {
            let life = of(&run, &r).unwrap();
            assert!(!life.chunks.is_empty(), "request {}", r.id);
            let tokens: u64 = life.chunks.iter().map(|c| c.tokens).sum();
            assert!(tokens >= u64::from(r.prompt_tokens - r.cached_tokens));
            if life.is_exact() {
                exact += 1;
                let sum: u64 = life.gaps.iter().map(|g| g.gap).sum();
                assert_eq!(sum, r.end.0 - r.first_token.0, "request {}", r.id);
                assert_eq!(life.gaps.last().map(|g| g.at), Some(r.end.0));
            }
        }
        let all = run.record.requests.len();
        assert!(exact > all * 9 / 10, "{exact} of {all}");
    }

    #[test]
    fn a_gap_tells_what_it_went_to() {
        let step = |start: u64, end: u64, prefill: u64, decode: u64| StepSpan {
            steps: 1,
            start,
            end,
            busy: end - start,
            parts: [0.001, 0.0, prefill as f32 * 1e-5, 0.0, 0.0, 0.0],
            prefill_tokens: prefill,
            decode_tokens: decode,
            ..StepSpan::default()
        };
        // A step that only prefills others lies between two tokens, and then nothing for a while.
        let steps = [
            step(100, 200, 0, 4),
            step(200, 500, 900, 0),
            step(700, 800, 0, 4),
        ];
        let found = gaps(&steps, 105, 5);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].token, found[0].gap, found[0].at), (2, 100, 205));
        assert_eq!(
            (found[1].gap, found[1].idle, found[1].prefilled),
            (600, 200, 900)
        );
        let words = because(&found[1]);
        assert!(
            words.contains("arithmetic") && words.contains("900 prompt tokens"),
            "{words}"
        );
        assert!(words.contains("200 ns without a step"), "{words}");
        let life = Life {
            gaps: found,
            tokens: 2,
            chunks: Vec::new(),
        };
        assert_eq!(life.longest(1)[0].token, 3);
        assert!(decode(&life).unwrap().contains("gave it a token"));
        let out = Life { tokens: 1, ..life };
        assert!(decode(&out).unwrap().contains("out of 1"));
    }
}

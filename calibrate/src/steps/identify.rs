//! What the data can and cannot tell apart, in words.

use nalgebra::DMatrix;

use super::log::Step;
use super::terms::{COLUMNS, Equation, Shape, column, row};

/// Correlation of two estimates beyond which they count as one.
const TOGETHER: f64 = 0.95;
/// Cosine of two columns beyond which they are the same to any fit.
const SAME: f64 = 0.9995;
/// Condition number of the scaled columns beyond which the whole is called ill-determined.
const ILL: f64 = 1e4;

/// What the steps say about the parameters.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Identifiability {
    /// Condition number of the columns that vary, each scaled to length one; the largest of all equations.
    pub condition: f64,
    /// Pairs of parameters whose estimates move together: names and correlation.
    pub together: Vec<(String, String, f64)>,
    /// Parameters that no step says anything about.
    pub silent: Vec<String>,
    /// All of it in sentences, with what would help.
    pub words: Vec<String>,
}

impl Identifiability {
    /// Notes a pair, once; whether it is new.
    fn add(&mut self, (a, b): (String, String), correlation: f64) -> bool {
        let new = !self.together.iter().any(|t| t.0 == a && t.1 == b);
        if new {
            self.together.push((a, b, correlation));
        }
        new
    }

    /// Says a sentence, once.
    fn say(&mut self, words: String) {
        if !self.words.contains(&words) {
            self.words.push(words);
        }
    }
}

/// What would tell two columns apart.
fn advice(i: usize, j: usize) -> &'static str {
    use column::{CHUNK, CONTEXT, ELEMENTWISE, FIXED, MIXED, PAIR, PRODUCT, SAMPLED, SEQ};
    let pair = |a, b| (i, j) == (a, b) || (i, j) == (b, a);
    let either = |a| i == a || j == a;
    if pair(SEQ, CONTEXT) || pair(SAMPLED, CONTEXT) || pair(FIXED, CONTEXT) {
        "run loads with several context lengths at one batch size"
    } else if pair(SEQ, SAMPLED) {
        "run prompts longer than the step's token budget, whose chunks do not sample"
    } else if pair(PRODUCT, PAIR) || pair(ELEMENTWISE, PAIR) || pair(CHUNK, PAIR) {
        "run prompts of several lengths, some much longer than the others"
    } else if either(MIXED) {
        "run prompts alone (one request at a time) beside a load that mixes them with decodes"
    } else if either(CHUNK) {
        "run several short prompts in one step (a burst) beside single long ones"
    } else if pair(PRODUCT, ELEMENTWISE) || pair(FIXED, PRODUCT) || pair(FIXED, ELEMENTWISE) {
        "run more batch sizes between one and where arithmetic overtakes the reading of weights"
    } else if pair(SEQ, PRODUCT) || pair(SEQ, ELEMENTWISE) || pair(SAMPLED, PRODUCT) {
        "run prompts beside decodes: a prompt has many tokens and one sequence"
    } else {
        "run loads at other concurrency and lengths"
    }
}

/// What a load would need for a parameter to show.
fn missing(i: usize) -> &'static str {
    use column::{CHUNK, CONTEXT, MIXED, PAIR};
    match i {
        CONTEXT => "no step decoded: ask for more than one output token",
        PAIR | CHUNK => "no step held a prompt",
        MIXED => "no step held prompts and decodes together: run several requests at a time",
        _ => "its column is zero in every step",
    }
}

/// Looks at `steps`, of which step `i` counts `weights[i]` times, with the columns of `shape`. Only columns that
/// meet in one of the `equations` can be mistaken for each other.
pub fn look(
    steps: &[Step],
    shape: &Shape,
    weights: &[f64],
    equations: &[Equation],
) -> Identifiability {
    let mut out = Identifiability::default();
    let k = COLUMNS.len();
    let mut a = DMatrix::<f64>::zeros(k, k);
    for (s, w) in steps.iter().zip(weights) {
        let x = row(&s.stats, shape);
        for i in 0..k {
            for j in 0..k {
                a[(i, j)] += w * x[i] * x[j];
            }
        }
    }
    for i in (0..k).filter(|&i| a[(i, i)] <= 0.0) {
        out.silent.push(COLUMNS[i].to_owned());
        out.words
            .push(format!("{} is not known: {}", COLUMNS[i], missing(i)));
    }
    for e in equations {
        let there: Vec<usize> = (e.columns.iter().copied())
            .filter(|&i| a[(i, i)] > 0.0)
            .collect();
        columns(&a, &there, &mut out);
    }
    if out.condition > ILL && out.together.is_empty() {
        out.words.push(format!(
            "several parameters together are ill-determined (condition number {:.0}): run loads that differ more",
            out.condition
        ));
    }
    out
}

/// Adds to `out` what the columns `there` of an equation say of each other; `a` is `X'WX`.
fn columns(a: &DMatrix<f64>, there: &[usize], out: &mut Identifiability) {
    let cosine = |p: usize, q: usize| a[(p, q)] / (a[(p, p)] * a[(q, q)]).sqrt();
    // Columns that are the same up to a factor count as one from here on.
    let mut leaders: Vec<usize> = Vec::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for &i in there {
        match leaders.iter().position(|&l| cosine(l, i) > SAME) {
            Some(g) => groups[g].push(i),
            None => {
                leaders.push(i);
                groups.push(vec![i]);
            }
        }
    }
    for group in groups.iter().filter(|g| g.len() > 1) {
        let names: Vec<&str> = group.iter().map(|&i| COLUMNS[i]).collect();
        for &i in &group[1..] {
            let pair = (COLUMNS[group[0]].to_owned(), COLUMNS[i].to_owned());
            out.add(pair, cosine(group[0], i));
        }
        out.say(format!(
            "{} rise and fall together in this data: only what they add up to is known; {}",
            names.join(", "),
            advice(group[0], group[1])
        ));
    }
    let there = leaders;
    let n = there.len();
    if n == 0 {
        return;
    }
    let scaled = DMatrix::from_fn(n, n, |i, j| {
        let (p, q) = (there[i], there[j]);
        a[(p, q)] / (a[(p, p)] * a[(q, q)]).sqrt()
    });
    let eigen = scaled.clone().symmetric_eigen();
    let largest = eigen.eigenvalues.max();
    let smallest = eigen.eigenvalues.min();
    let condition = (largest / smallest.max(1e-16 * largest)).sqrt();
    out.condition = out.condition.max(condition);
    // Covariance of the estimates, up to a factor; a direction without data is far but finite.
    let inverse = DMatrix::from_fn(n, n, |i, j| {
        (0..n)
            .map(|m| {
                eigen.eigenvectors[(i, m)] * eigen.eigenvectors[(j, m)]
                    / eigen.eigenvalues[m].max(1e-12)
            })
            .sum::<f64>()
    });
    for i in 0..n {
        for j in i + 1..n {
            let r = inverse[(i, j)] / (inverse[(i, i)] * inverse[(j, j)]).sqrt();
            if r.abs() > TOGETHER {
                let (p, q) = (there[i], there[j]);
                let pair = (COLUMNS[p].to_owned(), COLUMNS[q].to_owned());
                if out.add(pair, r) {
                    out.say(format!(
                    "{} and {} move together in this data (correlation of their estimates {r:.3}): predictions hold \
                     inside the measured range, each alone is uncertain; {}",
                    COLUMNS[p],
                    COLUMNS[q],
                    advice(p, q)
                ));
                }
            }
        }
    }
}

//! Answers a planning question and says how long that took: `cargo run --release -p planner --example answer plans/chat.toml [exhaustive] [KEY=VALUE...]`.

use std::path::Path;
use std::time::Instant;

use planner::plan::{Options, Question, answer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let file = if args.is_empty() {
        return Err("name a planning question".into());
    } else {
        args.remove(0)
    };
    let exhaustive = args.iter().any(|a| a == "exhaustive");
    let overrides: Vec<String> = args.into_iter().filter(|a| a.contains('=')).collect();
    let start = Instant::now();
    let question = Question::load(Path::new(&file), &overrides)?;
    let options = Options {
        exhaustive,
        ..Options::default()
    };
    let said = |what: &str| eprintln!("{:8.2} s {what}", start.elapsed().as_secs_f64());
    let found = answer(&question, options, &said)?;
    print!("{}", found.report.render());
    eprintln!("{:8.2} s", start.elapsed().as_secs_f64());
    Ok(())
}

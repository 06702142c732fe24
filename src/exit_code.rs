//! What the process tells its caller when it ends.

/// Everything asked for was done.
pub const OK: u8 = 0;
/// Something failed that is not the caller's input: a file could not be written, a defect.
pub const FAILURE: u8 = 1;
/// The command line, a scenario or another input file is wrong (clap's own code for usage errors too).
pub const BAD_INPUT: u8 = 2;
/// The run succeeded, but an `--expect` was not met.
pub const EXPECTATION_NOT_MET: u8 = 3;
/// The command ended with its report, but a part of what was asked for failed; the report names it and says why.
pub const INCOMPLETE: u8 = 4;
/// A simulated run in which no request finished: it has no latencies to judge by. The report is printed all the same.
pub const NOTHING_FINISHED: u8 = 5;

/// Each code in the words of `--help`.
const MEANINGS: [(u8, &str); 6] = [
    (OK, "ok"),
    (FAILURE, "failure"),
    (BAD_INPUT, "bad input or usage"),
    (EXPECTATION_NOT_MET, "an --expect was not met"),
    (INCOMPLETE, "a part failed; the report says which"),
    (NOTHING_FINISHED, "no request finished"),
];

/// The codes of every command.
pub const USUAL: [u8; 3] = [OK, FAILURE, BAD_INPUT];

/// The line of `--help` that lists `codes`, after `text`; `own` are the words of one command for some of them.
pub fn help(text: &str, codes: &[u8], own: &[(u8, &str)]) -> String {
    let listed: Vec<String> = (own.iter().chain(&MEANINGS).copied())
        .filter(|(code, _)| USUAL.contains(code) || codes.contains(code))
        .fold(Vec::new(), |mut all: Vec<(u8, &str)>, (code, words)| {
            if !all.iter().any(|(known, _)| *known == code) {
                all.push((code, words));
            }
            all.sort_unstable_by_key(|(code, _)| *code);
            all
        })
        .into_iter()
        .map(|(code, words)| format!("{code} {words}"))
        .collect();
    let gap = if text.is_empty() { "" } else { "\n\n" };
    format!("{text}{gap}Exit codes: {}.", listed.join(", "))
}

/// [`help`] of all codes.
pub fn all() -> String {
    help("", &MEANINGS.map(|(code, _)| code), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_a_command_s_codes_in_its_own_words() {
        assert_eq!(
            help(
                "Examples: x",
                &[NOTHING_FINISHED],
                &[(FAILURE, "a row differs")]
            ),
            "Examples: x\n\nExit codes: 0 ok, 1 a row differs, 2 bad input or usage, 5 no request finished."
        );
    }

    #[test]
    fn the_contract_has_a_row_for_each_code() {
        let page = include_str!("../docs/machine-contracts.md");
        let table = page.split("## ").find(|s| s.starts_with("Exit codes"));
        let rows = table.unwrap().lines().filter(|l| l.starts_with("| "));
        let codes: Vec<u8> = rows
            .filter_map(|l| l.split('|').nth(1)?.trim().parse().ok())
            .collect();
        assert_eq!(codes, MEANINGS.map(|(code, _)| code));
    }
}

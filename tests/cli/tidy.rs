//! How the documents and comments are written: the rules of `docs/STYLE.md` that a program can check.
//!
//! `tidy.toml` beside this file has the most that each page and crate may break each rule. Its numbers may only fall. After mending text,
//! lower them with `TIDY=1 cargo test -p servetwin --test cli tidy`, which writes today's numbers where they are lower.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Longest sentence that is not counted [words].
const LONGEST_SENTENCE: usize = 30;
/// Longest comment line that is not counted [characters].
const LONGEST_COMMENT: usize = 100;
/// Phrases with a better word: see the glossary of `docs/STYLE.md`.
const BANNED: [&str; 6] = [
    "held against",
    "nothing was fitted on",
    "as in life",
    "is told of",
    "goes together with",
    "stands for",
];
/// How the rustdoc of a function does not begin: a function does something.
const NO_VERBS: [&str; 7] = ["The ", "What ", "Whether ", "How ", "Those ", "Of ", "As "];
/// Folders that paths in documents and comments begin with.
const ROOMS: [&str; 10] = [
    "calibrate/",
    "docs/",
    "fuzz/",
    "hwmodels/",
    "plans/",
    "scenarios/",
    "sim/",
    "src/",
    "tests/",
    "viewer/",
];
/// Files of other projects, that documents cite by their path there; what is named after the place where it will be.
const ELSEWHERE: [&str; 14] = [
    "calibrate/data/h100/",
    "docs/cli-options.md",
    "docs/cli_options.md",
    "docs/design/",
    "docs/dual-pods.md",
    "docs/getting-started/",
    "docs/guides/",
    "docs/kb/",
    "docs/model_config.md",
    "docs/reference/",
    "docs/saturation-analyzer.md",
    "docs/source/",
    "hwmodels/data/profiles/SYSTEM.",
    "src/transformers_neuronx/",
];
/// Ends of the names of files that paths name.
const FILES: [&str; 8] = [".rs", ".md", ".toml", ".py", ".csv", ".json", ".sh", ".png"];

/// The most that is allowed.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Ceilings {
    /// Sentences over [`LONGEST_SENTENCE`], by page [per cent, rounded up].
    long_sentences_percent: BTreeMap<String, usize>,
    /// Banned phrases, by page.
    banned_phrases: BTreeMap<String, usize>,
    /// Comment lines over [`LONGEST_COMMENT`], by crate.
    long_comments: BTreeMap<String, usize>,
    /// Functions whose rustdoc begins with one of [`NO_VERBS`], by crate.
    functions_without_a_verb: BTreeMap<String, usize>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of the repository with one of these extensions, relative to its root.
fn tracked(extensions: &[&str]) -> Vec<PathBuf> {
    let out = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    let names = String::from_utf8(out.stdout).unwrap();
    let files: Vec<PathBuf> = names
        .split('\0')
        .map(PathBuf::from)
        .filter(|p| {
            p.extension()
                .is_some_and(|e| extensions.iter().any(|x| e == *x))
        })
        // Deleted, and not committed yet.
        .filter(|p| root().join(p).is_file())
        .collect();
    assert!(
        files.len() > 10,
        "git knows no files in {}",
        root().display()
    );
    files
}

fn read(file: &Path) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Paragraphs and list items of a page: without code, tables, headings and pictures.
fn paragraphs(page: &str) -> Vec<String> {
    let (mut found, mut code) = (vec![String::new()], false);
    for line in page.lines() {
        let text = line.trim_start();
        if text.starts_with("```") {
            code = !code;
        }
        let item = text.strip_prefix("- ").or_else(|| {
            let (number, rest) = text.split_once(". ")?;
            number.parse::<u8>().ok().map(|_| rest)
        });
        let breaks = text.is_empty() || text.starts_with(['|', '#', '!', '`']) && text.len() < 4;
        if code || breaks || text.starts_with(['|', '#', '!']) || line.starts_with("    ") {
            found.push(String::new());
        } else if let Some(item) = item {
            found.push(item.to_owned());
        } else if let Some(last) = found.last_mut() {
            last.push(' ');
            last.push_str(text);
        }
    }
    found.retain(|p| !p.trim().is_empty());
    found
}

/// Words of each sentence.
fn sentences(paragraph: &str) -> Vec<usize> {
    let (mut counts, mut words) = (Vec::new(), 0);
    let all: Vec<&str> = paragraph.split_whitespace().collect();
    for (i, word) in all.iter().enumerate() {
        words += 1;
        let bare = word.trim_end_matches([')', '*', '"', '`']);
        let ends = bare.ends_with(['.', '!', '?']) && !bare.ends_with("e.g.");
        let next = all.get(i + 1).and_then(|w| w.chars().next());
        if ends && next.is_none_or(|c| !c.is_lowercase()) || i + 1 == all.len() {
            counts.push(words);
            words = 0;
        }
    }
    counts
}

/// The crate that a file belongs to: its nearest folder with a `Cargo.toml`.
fn crate_of(file: &Path) -> String {
    let folder = file
        .ancestors()
        .skip(1)
        .find(|d| root().join(d).join("Cargo.toml").is_file());
    match folder {
        Some(d) if d != Path::new("") => d.display().to_string(),
        _ => "servetwin".to_owned(),
    }
}

/// Comment lines of a source: with their text.
fn comments(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter(|l| l.trim_start().starts_with("//"))
}

/// Functions whose rustdoc begins with no verb.
fn without_a_verb(source: &str) -> usize {
    let (mut count, mut first): (usize, Option<&str>) = (0, None);
    for line in source.lines().map(str::trim_start) {
        if let Some(doc) = line.strip_prefix("/// ") {
            first.get_or_insert(doc);
        } else if !line.starts_with("///") && !line.starts_with("#[") {
            let function = ["pub fn ", "pub async fn ", "pub const fn "];
            if function.iter().any(|f| line.starts_with(f)) {
                count +=
                    usize::from(first.is_some_and(|d| NO_VERBS.iter().any(|n| d.starts_with(n))));
            }
            first = None;
        }
    }
    count
}

/// What the repository breaks today.
fn today() -> Ceilings {
    let mut now = Ceilings::default();
    let mut add =
        |map: fn(&mut Ceilings) -> &mut BTreeMap<String, usize>, key: String, n: usize| {
            if n > 0 {
                *map(&mut now).entry(key).or_default() += n;
            }
        };
    for page in tracked(&["md"]) {
        // What was, is told in the words of its day.
        if page.ends_with("CHANGELOG.md") || page.ends_with("accuracy-history.md") {
            continue;
        }
        let (name, text) = (page.display().to_string(), read(&page));
        let counts: Vec<usize> = paragraphs(&text)
            .iter()
            .flat_map(|p| sentences(p))
            .collect();
        let long = counts.iter().filter(|n| **n > LONGEST_SENTENCE).count();
        add(
            |c| &mut c.long_sentences_percent,
            name.clone(),
            (100 * long).div_ceil(counts.len().max(1)),
        );
        let banned = BANNED.iter().map(|b| text.matches(b).count()).sum();
        add(|c| &mut c.banned_phrases, name, banned);
    }
    for file in tracked(&["rs"]) {
        let (name, text) = (crate_of(&file), read(&file));
        let long = comments(&text)
            .filter(|l| l.chars().count() > LONGEST_COMMENT)
            .count();
        add(|c| &mut c.long_comments, name.clone(), long);
        add(
            |c| &mut c.functions_without_a_verb,
            name,
            without_a_verb(&text),
        );
    }
    now
}

#[test]
fn pages_and_comments_break_the_rules_of_style_no_more_than_before() {
    let file = root().join("tests/cli/tidy.toml");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let mut most: Ceilings = toml::from_str(&text).unwrap_or_default();
    let now = today();
    let rules = |c: &Ceilings| {
        [
            ("long_sentences_percent", c.long_sentences_percent.clone()),
            ("banned_phrases", c.banned_phrases.clone()),
            ("long_comments", c.long_comments.clone()),
            (
                "functions_without_a_verb",
                c.functions_without_a_verb.clone(),
            ),
        ]
    };
    let lower = std::env::var_os("TIDY").is_some();
    if lower {
        let first = text.is_empty();
        let lowered = |most: &mut BTreeMap<String, usize>, now: &BTreeMap<String, usize>| {
            if first {
                most.clone_from(now);
            }
            most.retain(|k, n| {
                now.get(k).is_some_and(|today| {
                    *n = *today.min(n);
                    true
                })
            });
        };
        lowered(
            &mut most.long_sentences_percent,
            &now.long_sentences_percent,
        );
        lowered(&mut most.banned_phrases, &now.banned_phrases);
        lowered(&mut most.long_comments, &now.long_comments);
        lowered(
            &mut most.functions_without_a_verb,
            &now.functions_without_a_verb,
        );
        let head = "# The most that each page and crate may break the rules of docs/STYLE.md. Numbers only fall: see tests/cli/tidy.rs.\n\n";
        fs::write(&file, head.to_owned() + &toml::to_string(&most).unwrap()).unwrap();
    }
    let mut worse = Vec::new();
    for ((rule, now), (_, most)) in rules(&now).iter().zip(&rules(&most)) {
        for (place, n) in now {
            // A page of few sentences: one of ten may be long.
            let free = if *rule == "long_sentences_percent" {
                10
            } else {
                0
            };
            let most = most.get(place).copied().unwrap_or(0).max(free);
            if *n > most {
                worse.push(format!("{place}: {rule} is {n}, at most {most}"));
            }
        }
    }
    assert!(
        worse.is_empty(),
        "docs/STYLE.md says how to write:\n{}",
        worse.join("\n")
    );
}

/// Words of a text that look like the path of a file of this repository.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || "`()[]<>\"'|,;*".contains(c))
        .map(|w| w.trim_end_matches(['.', ':']))
        .map(|w| w.split(['#', ':']).next().unwrap_or(w))
        .filter(|w| ROOMS.iter().any(|r| w.starts_with(r)) && FILES.iter().any(|f| w.ends_with(f)))
        .filter(|w| !w.contains(['{', '$', '%', '…']) && !w.contains("..."))
        .filter(|w| !ELSEWHERE.iter().any(|e| w.starts_with(e)))
}

#[test]
fn files_that_documents_and_comments_name_exist() {
    let mut dead = Vec::new();
    for file in tracked(&["md", "rs"]) {
        let text = read(&file);
        let old = file.ends_with("CHANGELOG.md") || file.ends_with("accuracy-history.md");
        let rust = file.extension().is_some_and(|e| e == "rs");
        let text = if rust {
            comments(&text).collect::<Vec<_>>().join("\n")
        } else {
            text
        };
        // From the root, from the crate, from a folder above.
        let there = |p: &str| {
            file.ancestors()
                .skip(1)
                .any(|d| root().join(d).join(p).exists())
        };
        let wrong = paths(&text).filter(|p| !old && !there(p));
        dead.extend(wrong.map(|p| format!("{}: {p}", file.display())));
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn sentences_end_where_the_next_begins() {
    let page = "# A title\n\nOne two. Three four\nfive (see 1.5).\n\n| a | b |\n- an item: It goes on\n  here\n\n```sh\nx\n```\n";
    assert_eq!(paragraphs(page).len(), 2);
    let counts: Vec<usize> = paragraphs(page).iter().flat_map(|p| sentences(p)).collect();
    assert_eq!(counts, [2, 5, 6]);
}

//! Keys and commands: one list for the keyboard, the palette and the sheet of keys.

use egui::{Key, Modifiers};

use crate::gallery;
use crate::state::{Action, PaneKind};

/// Something that can be asked for by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// What it does.
    pub name: String,
    /// Its key, in words.
    pub key: String,
    /// What is asked for.
    pub action: Action,
}

/// Keys without modifiers, with what they do.
pub const KEYS: [(Key, &str, &str); 17] = [
    (Key::W, "W", "Zoom in"),
    (Key::S, "S", "Zoom out"),
    (Key::A, "A", "Move left"),
    (Key::D, "D", "Move right"),
    (Key::F, "F", "Show all of the run"),
    (Key::E, "E", "Show the selected request"),
    (Key::Comma, ",", "Previous request"),
    (Key::Period, ".", "Next request"),
    (Key::Space, "Space", "Play or pause"),
    (Key::ArrowLeft, "Left", "Playhead back"),
    (Key::ArrowRight, "Right", "Playhead forward"),
    (Key::L, "L", "Dark or light"),
    (Key::H, "H", "First screen"),
    (Key::T, "T", "Tour of a minute"),
    (Key::Questionmark, "?", "This sheet"),
    (Key::F1, "F1", "This sheet"),
    (Key::Escape, "Esc", "Close, or select nothing"),
];

/// What a key does.
pub fn of_key(key: Key, modifiers: Modifiers, window_s: f64) -> Option<Action> {
    if modifiers.command {
        return match key {
            Key::P | Key::K => Some(Action::Palette),
            Key::Z => Some(Action::Undo),
            Key::O => Some(Action::Pick),
            _ => None,
        };
    }
    let panes = [
        Key::Num1,
        Key::Num2,
        Key::Num3,
        Key::Num4,
        Key::Num5,
        Key::Num6,
        Key::Num7,
        Key::Num8,
        Key::Num9,
        Key::Num0,
    ];
    if let Some(i) = panes.iter().position(|k| *k == key) {
        return Some(Action::Show(PaneKind::ALL[i]));
    }
    Some(match key {
        Key::W => Action::Zoom(1.5),
        Key::S => Action::Zoom(1.0 / 1.5),
        Key::A => Action::Pan(-0.2),
        Key::D => Action::Pan(0.2),
        Key::F => Action::ShowAll,
        Key::E => Action::Fit,
        Key::Comma => Action::Neighbour(false),
        Key::Period => Action::Neighbour(true),
        Key::Space => Action::Play,
        Key::ArrowLeft => Action::Step(-0.01 * window_s),
        Key::ArrowRight => Action::Step(0.01 * window_s),
        Key::L => Action::Theme,
        Key::H => Action::Home,
        Key::T => Action::Tour,
        Key::Questionmark | Key::F1 => Action::Help,
        _ => return None,
    })
}

/// All commands, those of the shipped scenarios last.
pub fn all(window_s: f64) -> Vec<Command> {
    let mut commands: Vec<Command> = PaneKind::ALL
        .iter()
        .enumerate()
        .map(|(i, kind)| Command {
            name: format!("Show {}", kind.title()),
            key: if i < 10 {
                ((i + 1) % 10).to_string()
            } else {
                String::new()
            },
            action: Action::Show(*kind),
        })
        .collect();
    let of_keys = KEYS.iter().filter_map(|(key, words, name)| {
        let action = of_key(*key, Modifiers::NONE, window_s)?;
        (*key != Key::Questionmark).then(|| Command {
            name: (*name).replace("This sheet", "Sheet of keys"),
            key: (*words).to_owned(),
            action,
        })
    });
    commands.extend(of_keys);
    let plain = [
        ("Open file", "Ctrl+O", Action::Pick),
        ("Undo", "Ctrl+Z", Action::Undo),
        ("Sweep the load", "", Action::Sweep),
        ("Drop the what-if", "", Action::DropWhatIf),
        (
            "Save a picture of the window (PNG)",
            "",
            Action::Export(crate::state::Export::Png),
        ),
        (
            "Save the record of this run",
            "",
            Action::Export(crate::state::Export::Record),
        ),
        (
            "Save a trace for Perfetto",
            "",
            Action::Export(crate::state::Export::Perfetto),
        ),
        (
            "Copy the command for a report as HTML",
            "",
            Action::CopyReport,
        ),
        ("Compare with nothing any more", "", Action::DropComparison),
        ("Stop what is under way", "", Action::Cancel),
    ];
    commands.extend(plain.into_iter().map(|(name, key, action)| Command {
        name: name.to_owned(),
        key: key.to_owned(),
        action,
    }));
    commands.extend(
        gallery::SHIPPED
            .iter()
            .enumerate()
            .map(|(i, (name, _))| Command {
                name: format!("Run {name}"),
                key: String::new(),
                action: Action::RunShipped(i),
            }),
    );
    commands
}

/// Whether the letters of `wanted` come in `name` in their order; less is better.
pub fn score(name: &str, wanted: &str) -> Option<usize> {
    let name = name.to_lowercase();
    let mut at = 0;
    let mut gaps = 0;
    for c in wanted.to_lowercase().chars().filter(|c| !c.is_whitespace()) {
        let found = name[at..].find(c)?;
        gaps += found;
        at += found + c.len_utf8();
    }
    Some(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_in_order_find_a_command() {
        assert!(score("Show Timeline", "timel").is_some());
        assert!(score("Show Timeline", "stl").is_some());
        assert!(score("Show Timeline", "xyz").is_none());
        assert!(score("Zoom in", "zi") < score("Show Series, in full", "si"));
    }

    #[test]
    fn every_key_of_the_sheet_does_something_and_none_is_twice() {
        for (i, (key, words, _)) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|(k, ..)| k != key));
            let action = of_key(*key, Modifiers::NONE, 1.0);
            assert!(action.is_some() || *key == Key::Escape, "{words}");
        }
        assert!(all(1.0).len() > 40);
        assert_eq!(
            of_key(Key::P, Modifiers::COMMAND, 1.0),
            Some(Action::Palette)
        );
    }
}

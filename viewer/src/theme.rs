//! All colours, for dark and light, from a palette that colour-blind people can tell apart (Okabe and Ito, 2008).

use egui::{Color32, Context, Visuals};

/// Orange.
pub const ORANGE: Color32 = Color32::from_rgb(230, 159, 0);
/// Sky blue.
pub const SKY: Color32 = Color32::from_rgb(86, 180, 233);
/// Bluish green.
pub const GREEN: Color32 = Color32::from_rgb(0, 158, 115);
/// Yellow.
pub const YELLOW: Color32 = Color32::from_rgb(240, 228, 66);
/// Blue.
pub const BLUE: Color32 = Color32::from_rgb(0, 114, 178);
/// Vermillion.
pub const VERMILLION: Color32 = Color32::from_rgb(213, 94, 0);
/// Reddish purple.
pub const PURPLE: Color32 = Color32::from_rgb(204, 121, 167);
/// Grey, for what is idle or not known.
pub const GREY: Color32 = Color32::from_rgb(140, 140, 140);

/// Lines of a chart, in order.
pub const SERIES: [Color32; 7] = [SKY, ORANGE, GREEN, PURPLE, VERMILLION, YELLOW, BLUE];

/// What bound a step, in the order of `hwmodels::Parts::NAMES`.
pub const CAUSES: [Color32; 6] = [SKY, BLUE, VERMILLION, PURPLE, YELLOW, GREY];

/// In words, in the same order.
pub const CAUSE_NAMES: [&str; 6] = [
    "weights (bandwidth)",
    "KV (bandwidth)",
    "arithmetic",
    "communication",
    "host",
    "pipeline bubble",
];

/// The same, short.
pub const CAUSE_SHORT: [&str; 6] = [
    "weights",
    "KV",
    "arithmetic",
    "communication",
    "host",
    "bubble",
];

/// What a step held: prefill alone, decodes alone, both.
pub const PHASES: [Color32; 3] = [ORANGE, SKY, GREEN];

/// In words, in the same order.
pub const PHASE_NAMES: [&str; 3] = ["prefill", "decode", "mixed"];

/// Parts of a request, in the order of `run_data::parts`.
pub const REQUEST: [Color32; 5] = [GREY, ORANGE, PURPLE, SKY, VERMILLION];

/// In words, in the same order.
pub const REQUEST_NAMES: [&str; 5] = [
    "queue",
    "prefill",
    "KV transfer",
    "decode",
    "did not finish",
];

/// A request that lost its KV and was begun again.
pub const PREEMPTED: Color32 = YELLOW;

/// A limit of the objective.
pub const LIMIT: Color32 = VERMILLION;

/// Good and bad changes; blue and orange, not green and red.
pub fn change(better: bool, visuals: &Visuals) -> Color32 {
    match (better, visuals.dark_mode) {
        (true, true) => SKY,
        (true, false) => BLUE,
        (false, true) => ORANGE,
        (false, false) => VERMILLION,
    }
}

/// Text of notes and messages.
pub fn note(visuals: &Visuals) -> Color32 {
    change(false, visuals)
}

/// Sets the colours and spacing of all widgets.
pub fn apply(ctx: &Context, dark: bool) {
    ctx.set_theme(if dark {
        egui::Theme::Dark
    } else {
        egui::Theme::Light
    });
    let mut visuals = if dark {
        Visuals::dark()
    } else {
        Visuals::light()
    };
    visuals.selection.bg_fill = if dark {
        Color32::from_rgb(30, 84, 120)
    } else {
        Color32::from_rgb(160, 205, 235)
    };
    if dark {
        visuals.override_text_color = Some(Color32::from_gray(222));
        visuals.panel_fill = Color32::from_rgb(24, 26, 30);
        visuals.window_fill = Color32::from_rgb(30, 33, 38);
        visuals.extreme_bg_color = Color32::from_rgb(16, 18, 21);
    } else {
        visuals.override_text_color = Some(Color32::from_gray(25));
    }
    ctx.set_visuals(visuals);
    ctx.global_style_mut(|style| {
        let small = egui::FontId::proportional(11.0);
        style.text_styles.insert(egui::TextStyle::Small, small);
    });
}

/// Thin lines of axes and lanes.
pub fn grid(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_gray(58)
    } else {
        Color32::from_gray(215)
    }
}

/// Text that steps back.
pub fn faint(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode {
        Color32::from_gray(165)
    } else {
        Color32::from_gray(90)
    }
}

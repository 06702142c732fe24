//! Pictures of the application, painted without a window or a GPU, held against those in `tests/pictures`.
//!
//! `UPDATE_SNAPSHOTS=true cargo test -p viewer --test all pictures` writes them anew: look at them before they are committed. Where one differs, what was
//! painted is written beside it as `NAME.new.png`.

use std::io::BufReader;
use std::path::PathBuf;
use std::time::Duration;

use egui::{ColorImage, vec2};
use viewer::App;
use viewer::picture::Painter;
use viewer::state::{Action, PaneKind};

const SCENARIO: &str = r#"
name = "two replicas"
[layout]
replicas = 2
[engine]
kind = "vllm_v1"
kv_blocks = 400
max_num_seqs = 8
[step]
base = "5 ms"
per_token = "20 us"
[[workload]]
prompt = 200
output = { kind = "uniform", min = 10, max = 60 }
arrival = { kind = "poisson", rate = "40 req/s" }
[run]
requests = 300
[slo]
ttft = "200 ms"
"#;

/// A shade that differs by less is the same: rounding differs between machines.
const SAME_SHADE: u8 = 24;
/// Pixels that may differ all the same.
const MOST_DIFFERENT: f64 = 0.005;

fn place(name: &str) -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join(format!("tests/pictures/{name}.png"))
}

/// Width, height and the pixels' red, green and blue.
fn read(name: &str) -> Option<(usize, usize, Vec<u8>)> {
    let file = std::fs::File::open(place(name)).ok()?;
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size()?];
    let info = reader.next_frame(&mut pixels).unwrap();
    pixels.truncate(info.buffer_size());
    Some((info.width as usize, info.height as usize, pixels))
}

fn hold(name: &str, picture: &ColorImage) {
    let bytes = viewer::export::png_bytes(picture).unwrap();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(place(name), bytes).unwrap();
        return;
    }
    let (width, height, golden) = read(name).unwrap_or_else(|| panic!("there is no {name}.png"));
    let [w, h] = picture.size;
    assert_eq!((w, h), (width, height), "{name}");
    let painted = picture.pixels.iter().map(|p| [p.r(), p.g(), p.b()]);
    let differs = |(a, b): &([u8; 3], &[u8; 3])| {
        let shades = a.iter().zip(*b);
        shades.into_iter().any(|(x, y)| x.abs_diff(*y) > SAME_SHADE)
    };
    let different = painted
        .zip(golden.as_chunks::<3>().0)
        .filter(differs)
        .count();
    let share = different as f64 / (w * h) as f64;
    if share > MOST_DIFFERENT {
        let new = place(&format!("{name}.new"));
        std::fs::write(&new, bytes).unwrap();
        panic!(
            "{name}: {:.1} % of the pixels differ; what was painted is in {}",
            100.0 * share,
            new.display()
        );
    }
}

#[test]
fn views_look_as_they_did() {
    let mut app = App::default();
    let mut painter = Painter::new(vec2(900.0, 560.0), 1.0);
    app.open_bytes(painter.ctx(), "two.toml".to_owned(), SCENARIO.into());
    painter.picture(&mut app, 2);
    while app.busy() {
        std::thread::sleep(Duration::from_millis(5));
        painter.picture(&mut app, 1);
    }
    // The pane beside the timeline: one that shows nothing of the clock on the wall.
    app.state.ask(Action::Show(PaneKind::WhatIf));
    hold("timeline", &painter.picture(&mut app, 6));
    app.set_dark(false);
    app.state.ask(Action::Show(PaneKind::Distributions));
    hold("distributions-light", &painter.picture(&mut app, 6));
}

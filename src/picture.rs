//! Pictures as files: the name says the format.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::bad_input::BadInput;
use crate::output;

/// DejaVu Sans, its Latin, Greek and Cyrillic letters: machines that run this often have no fonts at all.
const FONT: &[u8] = include_bytes!("fonts/DejaVuSans-subset.ttf");

/// Pixels of a PNG for one of the SVG.
const SCALE: f32 = 2.0;

/// A format of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Scalable Vector Graphics.
    Svg,
    /// Portable Network Graphics.
    Png,
}

impl Format {
    /// The format that a file's name asks for.
    ///
    /// # Errors
    /// [`BadInput`] where the name ends in nothing that can be written.
    pub fn of(path: &Path) -> Result<Format, BadInput> {
        let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => Err(BadInput(format!(
                "{}: the name of a picture says its format, and ends in .svg or .png",
                path.display()
            ))),
        }
    }
}

/// Checks before the work that a picture can be written to `path`.
///
/// # Errors
/// As [`Format::of`] and [`output::check`].
pub fn check(path: &Path) -> anyhow::Result<()> {
    Format::of(path)?;
    output::check(path)
}

/// Writes the picture `svg` in the format that `path` asks for.
///
/// # Errors
/// As [`Format::of`]; where the file cannot be written.
pub fn write(path: &Path, svg: &str) -> anyhow::Result<()> {
    match Format::of(path)? {
        Format::Svg => output::write_text(path, svg),
        Format::Png => {
            let bytes = png(svg).with_context(|| format!("cannot draw {}", path.display()))?;
            output::write_file(path, |out| out.write_all(&bytes))
        }
    }
}

/// The picture in pixels.
fn png(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(FONT.to_vec());
    let family = fonts.faces().next().map(|f| f.families[0].0.clone());
    let family = family.context("the built-in font cannot be read")?;
    fonts.set_sans_serif_family(&family);
    let options = Options {
        font_family: family,
        fontdb: Arc::new(fonts),
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options)?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let mut pixels = size
        .and_then(|s| Pixmap::new(s.width(), s.height()))
        .context("a picture without area")?;
    resvg::render(
        &tree,
        Transform::from_scale(SCALE, SCALE),
        &mut pixels.as_mut(),
    );
    Ok(pixels.encode_png()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dark_pixels(svg: &str) -> usize {
        let pixels = Pixmap::decode_png(&png(svg).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (200, 100));
        let dark = |p: &&resvg::tiny_skia::PremultipliedColorU8| p.red() < 100 && p.alpha() > 200;
        pixels.pixels().iter().filter(dark).count()
    }

    #[test]
    fn letters_are_drawn_without_any_font_of_the_system() {
        let svg = |text: &str| {
            format!(
                "<svg width=\"100\" height=\"50\" viewBox=\"0 0 100 50\" xmlns=\"http://www.w3.org/2000/svg\">\
                 <rect width=\"100\" height=\"50\" fill=\"#FFFFFF\"/>\
                 <text x=\"5\" y=\"30\" font-family=\"sans-serif\" font-size=\"20\" fill=\"#000000\">{text}</text></svg>"
            )
        };
        assert_eq!(dark_pixels(&svg("")), 0);
        assert!(dark_pixels(&svg("p99 [ms]")) > 200);
        // Another text is another picture: no letter is a box.
        assert_ne!(dark_pixels(&svg("lll")), dark_pixels(&svg("µΣж")));
    }

    #[test]
    fn the_name_decides_the_format() {
        let of = |name: &str| Format::of(Path::new(name)).map_err(|e| e.0);
        assert_eq!(of("a/b.svg"), Ok(Format::Svg));
        assert_eq!(of("a.b.PNG"), Ok(Format::Png));
        for name in ["a.jpg", "svg", "a", ".png", "a.svg.gz"] {
            let message = of(name).unwrap_err();
            assert!(message.contains(".svg or .png"), "{message}");
        }
    }
}

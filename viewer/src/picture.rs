//! Pictures of the application without a window, a display or a GPU: what egui gives is painted by the CPU.
//!
//! For the book and for looking at a view on a machine without a screen. It paints triangles with their colours and the font's texture,
//! which is all that the application uses.

use egui::epaint::{ImageData, ImageDelta, Primitive, Vertex};
use egui::{
    CentralPanel, Color32, ColorImage, Context, Pos2, RawInput, Rect, TextureId, TexturesDelta, Ui,
    Vec2,
};

use crate::chart::{self, Chart};
use crate::{App, export, theme};

/// A chart of `size` points, with `scale` pixels per point, as the bytes of a PNG file.
///
/// # Errors
/// In words: why there is none.
pub fn chart(chart: &Chart, size: Vec2, scale: f32, dark: bool) -> Result<Vec<u8>, String> {
    let mut painter = Painter::new(size, scale);
    theme::apply(painter.ctx(), dark);
    // The first frame makes the letters.
    let image = painter.paint(2, |ui| {
        CentralPanel::default().show(ui, |ui| {
            let size = ui.available_size();
            chart::show(ui, chart, size, None);
        });
    });
    export::png_bytes(&image).map_err(|e| e.to_string())
}

/// Paints the application frame by frame.
pub struct Painter {
    ctx: Context,
    size: Vec2,
    scale: f32,
    font: ColorImage,
    frames: u32,
}

impl Painter {
    /// For a window of `size` points, with `scale` pixels per point.
    pub fn new(size: Vec2, scale: f32) -> Painter {
        Painter {
            ctx: Context::default(),
            size,
            scale,
            font: ColorImage::filled([1, 1], Color32::WHITE),
            frames: 0,
        }
    }

    /// Lets the application go on for `frames` frames; returns the picture of the last.
    pub fn picture(&mut self, app: &mut App, frames: u32) -> ColorImage {
        self.paint(frames, |ui| app.ui(ui))
    }

    /// Lets `show` go on for `frames` frames; returns the picture of the last.
    pub fn paint(&mut self, frames: u32, mut show: impl FnMut(&mut Ui)) -> ColorImage {
        let mut picture = ColorImage::filled([1, 1], Color32::BLACK);
        for i in 0..frames.max(1) {
            let mut input = RawInput {
                screen_rect: Some(Rect::from_min_size(Pos2::ZERO, self.size)),
                time: Some(f64::from(self.frames) / 30.0),
                ..RawInput::default()
            };
            if let Some(viewport) = input.viewports.get_mut(&input.viewport_id) {
                viewport.native_pixels_per_point = Some(self.scale);
            }
            self.frames += 1;
            let mut output = self.ctx.run_ui(input, &mut show);
            self.textures(&output.textures_delta);
            output.textures_delta.clear();
            if i + 1 == frames.max(1) {
                let shapes = self.ctx.tessellate(output.shapes, output.pixels_per_point);
                let size = self.size * self.scale;
                picture = ColorImage::filled([size.x as usize, size.y as usize], Color32::BLACK);
                for shape in &shapes {
                    if let Primitive::Mesh(mesh) = &shape.primitive {
                        self.mesh(&mut picture, shape.clip_rect, mesh);
                    }
                }
            }
        }
        picture
    }

    /// The context, to hand to [`App::open`].
    pub fn ctx(&self) -> &Context {
        &self.ctx
    }

    fn textures(&mut self, delta: &TexturesDelta) {
        for change in delta.set.get(&TextureId::default()).into_iter().flatten() {
            self.change(change);
        }
    }

    fn change(&mut self, change: &ImageDelta) {
        let ImageData::Color(image) = &change.image;
        let Some([x, y]) = change.pos else {
            self.font = (**image).clone();
            return;
        };
        let [w, h] = image.size;
        for row in 0..h {
            for column in 0..w {
                let at = (y + row) * self.font.size[0] + x + column;
                if let Some(pixel) = self.font.pixels.get_mut(at) {
                    *pixel = image.pixels[row * w + column];
                }
            }
        }
    }

    fn mesh(&self, picture: &mut ColorImage, clip: Rect, mesh: &egui::Mesh) {
        let clip = (clip * self.scale).intersect(Rect::from_min_size(
            Pos2::ZERO,
            Vec2::new(picture.size[0] as f32, picture.size[1] as f32),
        ));
        for corners in mesh.indices.as_chunks::<3>().0 {
            let corner = |i: usize| mesh.vertices.get(corners[i] as usize);
            if let (Some(a), Some(b), Some(c)) = (corner(0), corner(1), corner(2)) {
                self.triangle(picture, clip, [a, b, c]);
            }
        }
    }

    fn triangle(&self, picture: &mut ColorImage, clip: Rect, corners: [&Vertex; 3]) {
        let p = corners.map(|v| v.pos * self.scale);
        let area = edge(p[0], p[1], p[2]);
        if area.abs() < 1e-6 {
            return;
        }
        let bounds = Rect::from_points(&p).intersect(clip);
        if !bounds.is_positive() {
            return;
        }
        let [width, height] = picture.size;
        let (x0, y0) = (
            bounds.left().floor() as usize,
            bounds.top().floor() as usize,
        );
        let (x1, y1) = (
            bounds.right().ceil() as usize,
            bounds.bottom().ceil() as usize,
        );
        for y in y0..y1.min(height) {
            for x in x0..x1.min(width) {
                let at = Pos2::new(x as f32 + 0.5, y as f32 + 0.5);
                let w = [
                    edge(p[1], p[2], at) / area,
                    edge(p[2], p[0], at) / area,
                    edge(p[0], p[1], at) / area,
                ];
                if w.iter().any(|w| *w < 0.0) || !clip.contains(at) {
                    continue;
                }
                let texel = self.texel(corners, w);
                let pixel = &mut picture.pixels[y * width + x];
                *pixel = over(shade(corners, w, texel), *pixel);
            }
        }
    }

    fn texel(&self, corners: [&Vertex; 3], w: [f32; 3]) -> Color32 {
        let [width, height] = self.font.size;
        let mix = |of: fn(&Vertex) -> f32| (0..3).map(|i| w[i] * of(corners[i])).sum::<f32>();
        let x = (mix(|v| v.uv.x) * width as f32) as usize;
        let y = (mix(|v| v.uv.y) * height as f32) as usize;
        let at = y.min(height - 1) * width + x.min(width - 1);
        self.font.pixels.get(at).copied().unwrap_or(Color32::WHITE)
    }
}

/// Twice the area of a triangle, with its sign.
fn edge(a: Pos2, b: Pos2, c: Pos2) -> f32 {
    (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x)
}

/// The corners' colour at weights `w`, times the texel; premultiplied.
fn shade(corners: [&Vertex; 3], w: [f32; 3], texel: Color32) -> [f32; 4] {
    let texel = texel.to_array();
    std::array::from_fn(|c| {
        let mixed: f32 = (0..3)
            .map(|i| w[i] * f32::from(corners[i].color.to_array()[c]))
            .sum();
        mixed * f32::from(texel[c]) / 255.0
    })
}

/// A premultiplied colour over a pixel.
fn over(color: [f32; 4], pixel: Color32) -> Color32 {
    let below = pixel.to_array();
    let keep = 1.0 - color[3] / 255.0;
    let [r, g, b, _] = std::array::from_fn(|c| {
        (color[c] + keep * f32::from(below[c]))
            .round()
            .clamp(0.0, 255.0) as u8
    });
    Color32::from_rgb(r, g, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_screen_is_painted_with_text() {
        let mut painter = Painter::new(Vec2::new(640.0, 400.0), 1.0);
        let picture = painter.picture(&mut App::default(), 3);
        assert_eq!(picture.size, [640, 400]);
        let mut colors: Vec<_> = picture.pixels.iter().map(|p| p.to_array()).collect();
        colors.sort_unstable();
        colors.dedup();
        assert!(
            colors.len() > 40,
            "letters have many shades: {}",
            colors.len()
        );
        let bright = picture.pixels.iter().filter(|p| p.r() > 150).count();
        assert!(bright > 300, "{bright}");
    }
}

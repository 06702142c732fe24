//! Small pictures of runs, for the first screen: what bound the steps over time, and how busy replicas were.

use egui::{Mesh, Painter, Rect, pos2};
use store::{Record, resample};

use crate::theme;

/// Columns of a picture.
const COLUMNS: usize = 40;

/// A run as a few columns: shares of the time by cause, in the order of `hwmodels::Parts::NAMES`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thumb(Vec<[f32; 6]>);

impl Thumb {
    /// Of a run.
    pub fn of(record: &Record) -> Thumb {
        let columns = resample::columns(&record.steps, 0..record.info.end, COLUMNS, None);
        Thumb(columns.iter().map(|c| c.parts.map(|p| p as f32)).collect())
    }

    /// Paints it into `rect`.
    pub fn paint(&self, painter: &Painter, rect: Rect) {
        let most = self.0.iter().map(|c| c.iter().sum::<f32>());
        // Little is still seen.
        let scale = rect.height() / most.fold(0.2, f32::max);
        let width = rect.width() / self.0.len().max(1) as f32;
        let mut mesh = Mesh::default();
        for (i, column) in self.0.iter().enumerate() {
            let x = rect.left() + i as f32 * width;
            let mut y = rect.bottom();
            for (share, color) in column.iter().zip(theme::CAUSES) {
                let top = (y - share * scale).max(rect.top());
                if y - top > 0.05 {
                    let part = Rect::from_min_max(pos2(x, top), pos2(x + width, y));
                    mesh.add_colored_rect(part, color.gamma_multiply(0.8));
                }
                y = top;
            }
        }
        painter.add(mesh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_data::tests::small;

    #[test]
    fn a_picture_has_the_shares_of_the_run() {
        let run = small();
        let Thumb(columns) = Thumb::of(&run.record);
        assert_eq!(columns.len(), COLUMNS);
        let sums: Vec<f32> = columns.iter().map(|c| c.iter().sum()).collect();
        assert!(sums.iter().all(|s| (0.0..=1.01).contains(s)), "{sums:?}");
        assert!(sums[10] > 0.1, "{sums:?}");
    }
}

//! Panes: how they are laid out at first, and which view is in which.

use egui::Ui;
use egui_tiles::{Behavior, LinearDir, Tile, TileId, Tiles, Tree, UiResponse};

use crate::state::{PaneKind, State};
use crate::views::distributions::Distributions;
use crate::views::requests::Requests;
use crate::views::roofline::Roofline;
use crate::views::series::Series;
use crate::views::timeline::Timeline;
use crate::views::what_if::WhatIf;
use crate::views::{cluster, compare, knee, live, pareto, summary};

/// What each view keeps for itself.
#[derive(Default)]
pub(super) struct Views {
    pub timeline: Timeline,
    pub series: Series,
    pub distributions: Distributions,
    pub requests: Requests,
    pub what_if: WhatIf,
    pub roofline: Roofline,
    pub compare_path: String,
}

/// The timeline on top with its series below, everything else beside them.
pub(super) fn layout() -> Tree<PaneKind> {
    use PaneKind as P;
    let mut tiles = Tiles::default();
    let mut tabs = |kinds: &[PaneKind]| -> TileId {
        let panes = kinds.iter().map(|k| tiles.insert_pane(*k)).collect();
        tiles.insert_tab_tile(panes)
    };
    let top = tabs(&[P::Timeline, P::Cluster, P::Pareto, P::Live]);
    let below = tabs(&[P::Series, P::Distributions, P::Knee, P::Roofline]);
    let right = tabs(&[P::Summary, P::WhatIf, P::Requests, P::Compare]);
    let left = tiles.insert_vertical_tile(vec![top, below]);
    let root = tiles.insert_horizontal_tile(vec![left, right]);
    if let Some(Tile::Container(egui_tiles::Container::Linear(linear))) = tiles.get_mut(root) {
        debug_assert_eq!(linear.dir, LinearDir::Horizontal);
        linear.shares.set_share(left, 0.64);
        linear.shares.set_share(right, 0.36);
    }
    Tree::new(egui::Id::unique("panes"), root, tiles)
}

/// The panes of one frame.
pub(super) struct Panes<'a> {
    pub state: &'a mut State,
    pub views: &'a mut Views,
}

impl Behavior<PaneKind> for Panes<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _tile: TileId, pane: &mut PaneKind) -> UiResponse {
        let (state, views) = (&mut *self.state, &mut *self.views);
        // What is shown is still that of before: all of it but the sliders steps back.
        if state.dim && !matches!(pane, PaneKind::WhatIf | PaneKind::Live | PaneKind::Pareto) {
            ui.set_opacity(0.45);
        }
        egui::Frame::default()
            .inner_margin(6)
            .show(ui, |ui| match pane {
                PaneKind::Summary => summary::ui(ui, state),
                PaneKind::Timeline => views.timeline.ui(ui, state),
                PaneKind::Series => views.series.ui(ui, state),
                PaneKind::Distributions => views.distributions.ui(ui, state),
                PaneKind::Requests => views.requests.ui(ui, state),
                PaneKind::WhatIf => views.what_if.ui(ui, state),
                PaneKind::Compare => compare::ui(ui, state, &mut views.compare_path),
                PaneKind::Knee => knee::ui(ui, state),
                PaneKind::Roofline => views.roofline.ui(ui, state),
                PaneKind::Cluster => cluster::ui(ui, state),
                PaneKind::Pareto => pareto::ui(ui, state),
                PaneKind::Live => live::ui(ui, state),
            });
        UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &PaneKind) -> egui::WidgetText {
        pane.title().into()
    }

    fn simplification_options(&self) -> egui_tiles::SimplificationOptions {
        egui_tiles::SimplificationOptions {
            all_panes_must_have_tabs: true,
            ..Default::default()
        }
    }
}

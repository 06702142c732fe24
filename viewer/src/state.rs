//! What all views share: the run that is shown, the window over time, what is selected, what is to be done.

use std::sync::Arc;

use sim::metrics::Metric;

use crate::candidates::Candidates;
use crate::chart::Chart;
use crate::jobs::{Doc, KneePoint};
use crate::lanes::StepColors;
use crate::live::Looks;
use crate::run_data::RunData;
use crate::source::Source;
use crate::time_view::TimeView;

/// The panes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PaneKind {
    /// Figures of the run, and what limits it.
    Summary,
    /// Lanes over time.
    Timeline,
    /// Quantities over time.
    Series,
    /// Latencies.
    Distributions,
    /// One request; the slowest ones.
    Requests,
    /// Sliders.
    WhatIf,
    /// Two runs.
    Compare,
    /// Latency over load.
    Knee,
    /// Steps between bandwidth and arithmetic.
    Roofline,
    /// Replicas as they play.
    Cluster,
    /// Candidates of a plan or a sweep.
    Pareto,
    /// A digital twin.
    Live,
}

impl PaneKind {
    /// All of them; the first ten in the order of the keys 1 to 9 and 0.
    pub const ALL: [PaneKind; 12] = [
        PaneKind::Summary,
        PaneKind::Timeline,
        PaneKind::Series,
        PaneKind::Distributions,
        PaneKind::Requests,
        PaneKind::WhatIf,
        PaneKind::Compare,
        PaneKind::Knee,
        PaneKind::Roofline,
        PaneKind::Cluster,
        PaneKind::Pareto,
        PaneKind::Live,
    ];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            PaneKind::Summary => "Summary",
            PaneKind::Timeline => "Timeline",
            PaneKind::Series => "Series",
            PaneKind::Distributions => "Distributions",
            PaneKind::Requests => "Requests",
            PaneKind::WhatIf => "What if",
            PaneKind::Compare => "Compare",
            PaneKind::Knee => "Knee",
            PaneKind::Roofline => "Roofline",
            PaneKind::Cluster => "Cluster",
            PaneKind::Pareto => "Pareto",
            PaneKind::Live => "Live",
        }
    }

    /// The pane of this title, however it is written: `what-if`.
    pub fn named(name: &str) -> Option<PaneKind> {
        let plain = |s: &str| s.to_lowercase().replace([' ', '-'], "");
        let found = Self::ALL.iter().find(|k| plain(k.title()) == plain(name));
        found.copied()
    }

    /// What it shows, in a sentence.
    pub fn help(self) -> &'static str {
        match self {
            PaneKind::Summary => "The figures of the run, and what limits it.",
            PaneKind::Timeline => {
                "A lane per replica: steps coloured by what bound them, requests with their queue, prefill and decode."
            }
            PaneKind::Series => {
                "Rates, queues, KV use and what the time went to, over the window of the timeline."
            }
            PaneKind::Distributions => {
                "Latencies as cumulative shares, with the limits of the objective."
            }
            PaneKind::Requests => "The slowest requests, and one request's life in words.",
            PaneKind::WhatIf => {
                "Sliders that run the scenario again, with figures before and after."
            }
            PaneKind::Compare => "Two runs on the same axes, and their differences.",
            PaneKind::Knee => "Latency against load: where the deployment stops keeping up.",
            PaneKind::Roofline => {
                "Tokens per step against speed: bound by bandwidth on the left, by arithmetic on the right."
            }
            PaneKind::Cluster => "Replicas and their KV at an instant; press play.",
            PaneKind::Pareto => {
                "Candidates of a plan or a sweep, and those that no other beats; a click opens one."
            }
            PaneKind::Live => "A digital twin: measured and predicted as they come, drift marked.",
        }
    }
}

/// What somebody asked for, by a click, a key or the palette.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Run a shipped scenario.
    RunShipped(usize),
    /// Open a file.
    Open(String),
    /// Choose a file, and open it.
    Pick,
    /// Back to the first screen.
    Home,
    /// Show a pane.
    Show(PaneKind),
    /// Zoom by this factor.
    Zoom(f64),
    /// Move by this share of the window.
    Pan(f64),
    /// Show all of the run.
    ShowAll,
    /// Show the stretch of the selected request.
    Fit,
    /// Select a request.
    Select(Option<u32>),
    /// Select the request before or after.
    Neighbour(bool),
    /// Take back the last selection or move.
    Undo,
    /// Play or pause.
    Play,
    /// Move the playhead by this many seconds of the run.
    Step(f64),
    /// Dark or light.
    Theme,
    /// The sheet of keys.
    Help,
    /// The command palette.
    Palette,
    /// The tour.
    Tour,
    /// Run the scenario with these changes, as its variation.
    WhatIf(Vec<String>),
    /// Drop the variation.
    DropWhatIf,
    /// Compare with nothing any more.
    DropComparison,
    /// Sweep the load.
    Sweep,
    /// Compare with this run, of those that are open.
    CompareWith(usize),
    /// Compare with this run too, or no more.
    CompareAlso(usize),
    /// Open these files; the first is shown, the others are held against it.
    OpenAll(Vec<String>),
    /// Open a file to compare with.
    OpenCompare(String),
    /// Run a candidate, and show it.
    OpenCandidate(usize),
    /// Connect to the twin at this address.
    Connect(String),
    /// Ask the twin no more.
    Disconnect,
    /// Stop what is under way.
    Cancel,
    /// Write files of what is shown.
    Export(Export),
    /// Copy the command that writes the run as a page.
    CopyReport,
    /// Copy a text.
    Copy(String),
    /// Say something.
    Say(String),
}

/// What is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Export {
    /// A text of this name.
    Text {
        /// Name of the file.
        name: String,
        /// What is in it.
        text: String,
    },
    /// A picture of the window.
    Png,
    /// The record of the run.
    Record,
    /// A picture of a chart.
    Chart {
        /// Name of the file.
        name: String,
        /// The chart.
        chart: Box<Chart>,
    },
    /// The run as a trace that Perfetto opens.
    Perfetto,
}

/// What all views share.
pub struct State {
    /// The run that is shown.
    pub doc: Option<Arc<Doc>>,
    /// What it is held against: the run before a what-if, or another one.
    pub base: Option<Arc<Doc>>,
    /// What the run that is shown is a variation of.
    pub varied: Option<Arc<Doc>>,
    /// Further runs that it is held against.
    pub more: Vec<Arc<Doc>>,
    /// Runs that were opened.
    pub docs: Vec<Arc<Doc>>,
    /// The window over time.
    pub time: TimeView,
    /// The request that is selected.
    pub request: Option<u32>,
    /// The replica that series are about; none: all.
    pub replica: Option<usize>,
    /// The instant under the pointer, in whichever view [ns].
    pub hover: Option<f64>,
    /// The instant of the cluster picture [ns].
    pub playhead: f64,
    /// Whether it moves.
    pub playing: bool,
    /// Seconds of the run per second.
    pub speed: f64,
    /// What colours of steps mean.
    pub colors: StepColors,
    /// The metric that views about one metric show.
    pub metric: Metric,
    /// A variation is being computed: the picture is that of before.
    pub stale: bool,
    /// It has taken so long that the picture is dimmed.
    pub dim: bool,
    /// How long the last variation took to come [s].
    pub answered_s: Option<f64>,
    /// The load sweep.
    pub knee: Option<Vec<KneePoint>>,
    /// The result of a plan or a sweep.
    pub candidates: Option<Arc<Candidates>>,
    /// Figures of it that are shown, where they were chosen: across and up.
    pub candidate_axes: Option<(usize, usize)>,
    /// Path of the scenario that candidates are settings of; empty: the run that is shown.
    pub candidate_base: String,
    /// What a twin has said.
    pub looks: Option<Looks>,
    /// The twin's address, as it was typed.
    pub live_address: String,
    /// What was asked for in this frame.
    pub actions: Vec<Action>,
}

impl Default for State {
    fn default() -> Self {
        State {
            doc: None,
            base: None,
            varied: None,
            more: Vec::new(),
            docs: Vec::new(),
            time: TimeView::all(0),
            request: None,
            replica: None,
            hover: None,
            playhead: 0.0,
            playing: false,
            speed: 1.0,
            colors: StepColors::Cause,
            metric: Metric::Ttft,
            stale: false,
            dim: false,
            answered_s: None,
            knee: None,
            candidates: None,
            candidate_axes: None,
            candidate_base: String::new(),
            looks: None,
            live_address: String::new(),
            actions: Vec::new(),
        }
    }
}

impl State {
    /// The run that is shown.
    pub fn run(&self) -> Option<Arc<RunData>> {
        self.doc.as_ref().map(|d| d.data.clone())
    }

    /// What the run that is shown is held against.
    pub fn others(&self) -> Vec<Arc<Doc>> {
        self.base.iter().chain(&self.more).cloned().collect()
    }

    /// What was run.
    pub fn source(&self) -> Option<&Source> {
        self.doc.as_ref().map(|d| &d.source)
    }

    /// Asks for something.
    pub fn ask(&mut self, action: Action) {
        self.actions.push(action);
    }
}

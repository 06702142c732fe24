//! The files that a scenario reads.

use std::path::{Path, PathBuf};

use super::{ModelSource, Scenario};
use crate::workload::{Arrival, Length, Lengths, StreamSpec};

impl Scenario {
    /// The files that building and running the scenario reads beside its own: tables, traces, profiles, the model's shape, the
    /// catalog. They need not be there.
    pub fn inputs(&self) -> Vec<PathBuf> {
        let mut files: Vec<&Path> = self.workload.iter().flat_map(of_stream).collect();
        if let Some(ModelSource::Config(file)) = self.model.as_ref().map(|m| &m.source) {
            files.push(file);
        }
        if let Some(fitted) = &self.fitted {
            files.push(&fitted.profile);
        }
        if let Some(hardware) = &self.hardware
            && hardware.profile.ends_with(".toml")
        {
            files.push(Path::new(&hardware.profile));
        }
        for pool in &self.pools {
            if let Some(ModelSource::Config(file)) = pool.model.as_ref().map(|m| &m.source) {
                files.push(file);
            }
            if let Some(h) = &pool.hardware
                && h.profile.ends_with(".toml")
            {
                files.push(Path::new(&h.profile));
            }
        }
        let mut all: Vec<PathBuf> = files.into_iter().map(|f| self.base.join(f)).collect();
        if let Some(dir) = self.hardware.as_ref().and_then(|h| h.catalog.as_ref()) {
            let dir = self.base.join(dir);
            for folder in [dir.join("models"), dir] {
                all.extend(self.files.list(&folder).unwrap_or_default());
            }
        }
        all
    }
}

fn of_stream(stream: &StreamSpec) -> Vec<&Path> {
    fn length(l: &Length) -> Option<&PathBuf> {
        match l {
            Length::Empirical { file, .. } => Some(file),
            _ => None,
        }
    }
    let mut files = Vec::new();
    match &stream.arrival {
        Arrival::RateTable { file, .. } | Arrival::Trace { file, .. } => files.push(file),
        _ => {}
    }
    match &stream.lengths {
        Lengths::Separate { prompt, output } => {
            files.extend(length(prompt));
            files.extend(length(output));
        }
        Lengths::Pairs { file, .. } => files.push(file),
        Lengths::OfTrace => {}
    }
    files.extend(stream.sessions.as_ref().and_then(|s| length(&s.turns)));
    files.into_iter().map(PathBuf::as_path).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::scenario::Scenario;

    #[test]
    fn every_file_that_a_scenario_names_is_among_its_inputs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("cat/models")).unwrap();
        for file in ["cat/a.toml", "cat/models/m.json"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let text = "[model]\nconfig = \"m/config.json\"\n\
            [hardware]\ninstance = \"g5.2xlarge\"\nprofile = \"p.toml\"\ncatalog = \"cat\"\n[engine]\nkind = \"tgi\"\n\
            [[workload]]\narrival = { kind = \"trace\", file = \"t.csv\" }\n\
            [[workload]]\narrival = { kind = \"poisson\", rate = \"1 req/s\" }\n\
            prompt = { kind = \"empirical\", file = \"in.csv\", column = \"n\" }\noutput = 5\n\
            [[workload]]\narrival = { kind = \"rate_table\", file = \"r.csv\" }\n\
            prompt = 5\noutput = { kind = \"empirical\", file = \"out.csv\", column = \"n\" }\n\
            [run]\nrequests = 10\n";
        let file = dir.path().join("s.toml");
        std::fs::write(&file, text).unwrap();
        let scenario = Scenario::load(&file, &[]).unwrap();
        let inputs = scenario.inputs();
        for want in [
            "m/config.json",
            "p.toml",
            "cat/a.toml",
            "cat/models/m.json",
            "t.csv",
            "in.csv",
            "out.csv",
            "r.csv",
        ] {
            let want = dir.path().join(Path::new(want));
            assert!(inputs.contains(&want), "{}: {inputs:?}", want.display());
        }
    }
}

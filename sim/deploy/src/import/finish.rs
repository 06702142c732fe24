//! From what the files say to a whole scenario: the model's name in the catalog, the machine, how many replicas, and defaults for what no file says.

use std::sync::Arc;

use hwmodels::catalog::Catalog;
use hwmodels::instance::Instance;
use sim::scenario::Scenario;

use super::detect::Kind;
use super::draft::{Draft, Origin, Stream};
use super::names::{accelerator_of, model_of};
use super::pools::Pool;
use crate::place::{Error, Fault, Place, shown};
use crate::report::Report;

/// What the caller says in place of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The kind of every file, in place of what its content tells.
    pub kind: Option<Kind>,
    /// The machine: an instance type, or `8xH100`.
    pub instance: Option<String>,
    /// The model's name in the catalog.
    pub model: Option<String>,
}

/// A scenario and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The scenario as TOML, each value with its file and line.
    pub scenario: String,
    /// What became of every key.
    pub report: Report,
}

/// What a run is given where no file says how long it is [requests].
const REQUESTS: i64 = 500;
/// The load that is assumed where no file gives one.
const LOAD: (&str, i64, i64) = ("1 req/s", 512, 128);

/// The scenario, or all that is wrong.
pub fn finish(mut draft: Draft, options: &Options) -> Result<Imported, Error> {
    let catalog = Catalog::builtin();
    // What is missing is told only where it is not a wrong line's fault.
    let clean = !draft.has_faults();
    from_options(&mut draft, options, &catalog);
    draft.settle();
    model(&mut draft, &catalog, clean);
    parallelism(&mut draft, &catalog);
    hardware(&mut draft, &catalog, clean);
    replicas(&mut draft);
    if let Some(mut prefill) = draft.facts.prefill.take() {
        draft.swap(&mut prefill);
        parallelism(&mut draft, &catalog);
        devices(&mut draft, &catalog);
        replicas(&mut draft);
        let serves = draft.get("engine.kind").is_some();
        draft.swap(&mut prefill);
        if !draft.has_faults() && serves && draft.get("engine.kind").is_some() {
            let own = own_machine(&draft);
            super::apart::pools(&mut draft, prefill);
            kv_link(&mut draft, own);
        } else if clean && !draft.has_faults() {
            draft.fault(Fault::new(
                first_file(&draft),
                "",
                "one side prefills and none decodes, or the other way round; import the whole deployment",
            ));
        }
    }
    if draft.get("engine.kind").is_none() && clean {
        draft.fault(Fault::new(
            first_file(&draft),
            "",
            "no file says which engine serves; give a command such as `vllm serve ...` or a manifest that runs one beside it",
        ));
    }
    load(&mut draft, &[]);
    super::scaling::place(&mut draft);
    if draft.has_faults()
        && let Some(error) = draft.clone().into_error()
    {
        return Err(error);
    }
    checked(draft)
}

/// The scenario of several deployments, or all that is wrong.
pub fn pools(mut draft: Draft, mut pools: Vec<Pool>, options: &Options) -> Result<Imported, Error> {
    let catalog = Catalog::builtin();
    let clean = !draft.has_faults() && pools.iter().all(|p| !p.draft.has_faults());
    if let Some(origin) = draft.origin("engine.kind").cloned() {
        draft.fault(origin.fault(
            "starts an engine beside the Deployments of the manifests; import one of both at a time",
        ));
    }
    let config = draft.facts.config.clone();
    let mut ids: Vec<String> = Vec::new();
    for pool in &mut pools {
        let own = &mut pool.draft;
        own.report.files.clone_from(&draft.report.files);
        own.facts.config.clone_from(&config);
        if own.facts.node_pool.is_none() {
            own.facts.node_pool.clone_from(&draft.facts.node_pool);
        }
        ids.extend(own.facts.model.as_ref().map(|m| m.0.clone()));
        from_options(own, options, &catalog);
        own.settle();
        model(own, &catalog, clean);
        parallelism(own, &catalog);
        hardware(own, &catalog, clean);
        replicas(own);
    }
    ids.sort();
    ids.dedup();
    if let (Some((_, origin)), true) = (config, ids.len() > 1) {
        draft.fault(origin.fault(format!(
            "the deployments serve several models ({}), and nothing says which of them this is; leave it out, or import them one by one",
            shown(&ids.join(", "))
        )));
    }
    draft.settle();
    let models = models(&pools);
    let groups = super::scaling::groups(&pools);
    let parted = pools.iter().filter(|p| p.role.is_some());
    let link = parted
        .map(|p| own_machine(&p.draft))
        .reduce(|a, b| match (a, b) {
            (Some(a), Some(b)) => Some(if a.1 <= b.1 { a } else { b }),
            _ => None,
        });
    super::pools::place(&mut draft, &mut pools);
    kv_link(&mut draft, link.flatten());
    load(&mut draft, &models);
    if !draft.has_faults() {
        super::scaling::place_all(&mut draft, &pools, groups);
    }
    if draft.has_faults()
        && let Some(error) = draft.clone().into_error()
    {
        return Err(error);
    }
    checked(draft)
}

/// The models that deployments serve, each once; none where all serve the same one.
fn models(pools: &[Pool]) -> Vec<String> {
    let of = |p: &Pool| {
        let said = ["model.name", "model.config"].map(|key| p.draft.get(key));
        let name = said.into_iter().flatten().find_map(|v| v.as_str());
        name.unwrap_or("").to_owned()
    };
    let mut names: Vec<String> = Vec::new();
    for name in pools.iter().map(of) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() < 2 {
        names.clear();
    }
    names
}

fn first_file(draft: &Draft) -> Place {
    let name = draft.report.files.first().map_or("import", |f| &f.file);
    Place {
        file: name.into(),
        line: 0,
    }
}

/// What the command line says in place of the files.
fn from_options(draft: &mut Draft, options: &Options, catalog: &Catalog) {
    if let Some(name) = &options.model {
        let origin = Origin::new(Place::option("--model"), "", name.clone());
        if let Some((id, from)) = draft.facts.model.take() {
            draft.used(&from, format!("--model says what it is ({})", shown(&id)));
        }
        draft.facts.config = None;
        draft.facts.model = Some((name.clone(), origin));
    }
    let Some(machine) = &options.instance else {
        return;
    };
    let origin = Origin::new(Place::option("--instance"), "", machine.clone());
    for key in [
        "hardware.instance",
        "hardware.accelerator",
        "hardware.count",
    ] {
        draft.take(key);
    }
    // 8xH100: a machine of one's own.
    let own = machine.split_once(['x', 'X']).and_then(|(n, name)| {
        let count: i64 = n.parse().ok()?;
        Some((count, catalog.accelerator(name).ok()?.name.clone()))
    });
    match own {
        Some((count, name)) if catalog.instance(machine).is_err() => {
            draft.set("hardware.accelerator", name, &origin);
            draft.set("hardware.count", count, &origin);
        }
        _ => draft.set("hardware.instance", machine.clone(), &origin),
    }
}

/// The model: a `config.json` among the files, else the catalog.
fn model(draft: &mut Draft, catalog: &Catalog, clean: bool) {
    let named = draft.facts.model.clone();
    if let Some((reference, origin)) = draft.facts.config.clone() {
        draft.set("model.config", reference, &origin);
        if let Some((id, origin)) = named {
            draft.used(
                &origin,
                format!("its shape is that of model.config ({})", shown(&id)),
            );
        }
        return;
    }
    let Some((id, origin)) = named else {
        if draft.get("model.name").is_none() && clean {
            draft.fault(Fault::new(
                first_file(draft),
                "",
                "no file says which model is served; give its config.json beside the files",
            ));
        }
        return;
    };
    match model_of(&id, catalog) {
        Ok(found) => {
            draft.set("model.name", found.name, &origin);
            if let Some(format) = found.weights
                && draft.get("model.weights").is_none()
            {
                draft.set("model.weights", format, &origin);
            }
        }
        Err(why) => match super::guess::nearest(&id, catalog) {
            Some(guess) => guessed(draft, &id, &origin, &guess),
            None => draft.fault(origin.fault(why)),
        },
    }
}

/// A model of the catalog in place of one that it does not have.
fn guessed(draft: &mut Draft, id: &str, origin: &Origin, guess: &super::guess::Guess) {
    let near = match guess.is_family {
        true => "in family and size",
        false => "in size",
    };
    draft.used(
        origin,
        "a model that the catalog does not have: see the defaults",
    );
    draft.assume(
        "model.name",
        guess.name.clone(),
        &format!(
            "a guess: of the catalog's models the nearest {near} to `{}`, whose name counts {} B parameters; give its Hugging Face config.json beside the files, or the model of the \
             same shape with --model NAME",
            shown(id),
            guess.billions
        ),
    );
    draft.warn(format!(
        "{}: `{}` is not in the catalog, so {} stands in for it: a guess by its name",
        origin.place,
        shown(id),
        guess.name
    ));
    if let Some(format) = super::names::format_of(id)
        && draft.get("model.weights").is_none()
    {
        draft.assume(
            "model.weights",
            format,
            "the format that the model's name tells",
        );
    }
}

/// Data and expert parallelism, which mean one thing for a mixture of experts and another for a dense model.
fn parallelism(draft: &mut Draft, catalog: &Catalog) {
    let experts = draft
        .get("model.name")
        .and_then(|n| n.as_str())
        .and_then(|n| catalog.model(n).ok())
        .map(|m| m.moe.is_some());
    let dp = draft.facts.data_parallel.clone();
    if let Some((n, origin)) = dp.clone().filter(|(n, _)| *n > 1) {
        // An unknown model may be either; experts spread over ranks settle it.
        let together = experts.unwrap_or(draft.facts.expert_parallel.is_some());
        if together && !draft.facts.copies {
            draft.set("layout.dp", n, &origin);
        } else {
            draft.facts.replicas.push((n, origin));
            let (policy, why) = match draft.facts.copies {
                true => (
                    "round_robin",
                    "the copies are replicas behind SGLang's own balancer, which takes them in turn",
                ),
                false => (
                    "least_outstanding",
                    "the ranks of a dense model are replicas behind vLLM's own balancer, which prefers the one with the fewest requests",
                ),
            };
            draft.assume("router.policy", policy, why);
        }
    }
    if let Some(origin) = draft.facts.attention_dp.clone()
        && let Some((ranks, _)) = draft.take("layout.tp")
    {
        draft.set("layout.dp", ranks, &origin);
    }
    if draft.get("layout.tp").is_none()
        && (draft.facts.fills_pod
            || draft.get("engine.kind").and_then(|k| k.as_str()) == Some("tgi"))
        && let Some((devices, origin)) = draft.facts.pod_devices.clone()
    {
        draft.set("layout.tp", devices, &origin);
    }
    if let Some(origin) = draft.facts.expert_parallel.clone() {
        let ranks = draft
            .whole("layout.tp", 1)
            .saturating_mul(draft.whole("layout.dp", 1));
        match experts {
            Some(false) => draft.used(&origin, "the model has no experts"),
            _ if ranks > 1 => draft.set("layout.ep", ranks, &origin),
            _ => draft.used(&origin, "one rank holds all experts anyway"),
        }
    }
}

/// The machine: as told, by the pod's node selector, or by the accelerator's product name and the devices of a pod.
fn hardware(draft: &mut Draft, catalog: &Catalog, clean: bool) {
    node_pool(draft, catalog);
    if let Some((product, origin)) = draft.facts.product.clone() {
        if draft.has_section("hardware") {
            draft.used(&origin, "the machine is said otherwise");
        } else if let Some(name) = accelerator_of(&product, catalog) {
            draft.set("hardware.accelerator", name, &origin);
            let ranks = ["layout.tp", "layout.pp", "layout.dp"];
            let ranks = ranks
                .iter()
                .fold(1i64, |all, key| all.saturating_mul(draft.whole(key, 1)));
            let devices = draft.facts.pod_devices.as_ref().map_or(ranks, |(n, _)| *n);
            draft.assume(
                "hardware.count",
                devices,
                "the devices of a pod; a node may have more, and has a price: --instance TYPE",
            );
        } else {
            draft.fault(origin.fault(format!(
                "`{}` is no accelerator of the catalog (servetwin catalog list accelerators); say the machine with --instance TYPE",
                shown(&product)
            )));
        }
    }
    if !draft.has_section("hardware") && draft.facts.product.is_none() && clean {
        draft.fault(Fault::new(
            first_file(draft),
            "",
            "no file says which machine serves; add --instance TYPE, e.g. --instance g5.2xlarge (servetwin catalog list instances), or --instance 8xH100 for a machine of \
             your own",
        ));
    }
    neuron(draft, catalog);
    several_machines(draft, catalog);
    devices(draft, catalog);
}

/// TGI on a Neuron chip is a server of its own, compiled for one batch and one length.
fn neuron(draft: &mut Draft, catalog: &Catalog) {
    let is_tgi = draft.get("engine.kind").and_then(|k| k.as_str()) == Some("tgi");
    let instance = draft.get("hardware.instance").and_then(|n| n.as_str());
    let chip = instance.and_then(|n| {
        catalog
            .accelerator(&catalog.instance(n).ok()?.accelerator)
            .ok()
    });
    if !is_tgi || chip.is_none_or(|c| c.vendor != "AWS") {
        return;
    }
    // Keys that both have, or that are renamed below.
    const KEPT: [&str; 8] = [
        "kind",
        "max_batch_size",
        "max_total_tokens",
        "max_input_tokens",
        "max_batch_prefill_tokens",
        "max_concurrent_requests",
        "waiting_served_ratio",
        "max_waiting_tokens",
    ];
    let kept = |key: &String| KEPT.iter().any(|k| key.strip_prefix("engine.") == Some(k));
    for key in draft.keys("engine.").into_iter().filter(|k| !kept(k)) {
        if let Some((_, Some(origin))) = draft.take(&key) {
            draft.fate(&origin, crate::report::Fate::NotModelled, "TGI on Neuron is compiled for a batch and a length, and has nothing else to set here");
        }
    }
    for (from, to) in [
        ("engine.max_batch_size", "engine.batch_size"),
        ("engine.max_total_tokens", "engine.sequence_length"),
    ] {
        if let Some((n, Some(origin))) = draft.take(from) {
            draft.set(to, n, &origin);
        }
    }
    if let Some((_, Some(origin))) = draft.take("engine.kind") {
        draft.set("engine.kind", "tgi_neuron", &origin);
    }
}

/// The machine that a pool of nodes may have, where no workload says one: the first that the catalog knows.
fn node_pool(draft: &mut Draft, catalog: &Catalog) {
    let Some((label, values, origin)) = draft.facts.node_pool.clone() else {
        return;
    };
    if draft.has_section("hardware") || draft.facts.product.is_some() {
        return draft.used(&origin, "the machine is said otherwise");
    }
    let is_instance = super::pod::names_instance(&label) == Some(true);
    let known = |v: &&String| match is_instance {
        true => catalog.instance(v).is_ok(),
        false => accelerator_of(v, catalog).is_some(),
    };
    let Some(first) = values.iter().find(known).or(values.first()) else {
        return;
    };
    if values.len() > 1 {
        draft.warn(format!(
            "{}: {}: {} machines may serve ({}); {} is taken, say another with --instance",
            origin.place,
            shown(&origin.key),
            values.len(),
            shown(&origin.raw),
            shown(first)
        ));
    }
    match is_instance {
        true => draft.set("hardware.instance", first.clone(), &origin),
        false => draft.facts.product = Some((first.clone(), origin)),
    }
}

/// Machines of no catalog have no network between them: a replica over several stands on an instance type with the same devices.
fn several_machines(draft: &mut Draft, catalog: &Catalog) {
    let name = draft
        .get("hardware.accelerator")
        .and_then(|n| n.as_str())
        .map(str::to_owned);
    let count = draft.whole("hardware.count", 1);
    let ranks = ["layout.tp", "layout.pp", "layout.dp"]
        .iter()
        .fold(1i64, |all, key| all.saturating_mul(draft.whole(key, 1)));
    let (Some(name), true) = (name, ranks > count) else {
        return;
    };
    if draft
        .origin("hardware.accelerator")
        .is_some_and(|o| o.place.line == 0)
    {
        return;
    }
    let of_it = |i: &&Instance| {
        i.accelerator == name && i64::from(i.devices) >= count && i.network_bandwidth > 0.0
    };
    let best = catalog.instances().filter(of_it).min_by_key(|i| i.devices);
    if let Some(instance) = best {
        draft.take("hardware.accelerator");
        draft.take("hardware.count");
        draft.assume(
            "hardware.instance",
            instance.name.clone(),
            "a replica takes several machines, and no file says the network between them: an instance type with such accelerators; say yours with --instance",
        );
    }
}

/// The link between prefill and decode on machines of no catalog, which have no network that it knows: that of an instance type with such accelerators.
pub fn kv_link(draft: &mut Draft, own: Option<(String, i64)>) {
    let Some((accelerator, devices)) = own else {
        return;
    };
    let catalog = Catalog::builtin();
    let share = |i: &Instance| i.network_bandwidth / f64::from(i.devices.max(1));
    let alike =
        (catalog.instances()).filter(|i| i.accelerator == accelerator && i.network_bandwidth > 0.0);
    let Some(best) = alike.max_by(|a, b| share(a).total_cmp(&share(b))) else {
        return;
    };
    let bandwidth = share(best) * devices as f64 / 1e9;
    draft.assume(
        "kv_transfer.bandwidth",
        format!("{bandwidth:.3} GB/s"),
        &format!("no file says the network between the machines: that of {}, by a replica's share of the devices", best.name),
    );
}

/// Accelerator and devices of a replica on a machine of no catalog.
fn own_machine(draft: &Draft) -> Option<(String, i64)> {
    let name = draft.get("hardware.accelerator")?.as_str()?.to_owned();
    let ranks = ["layout.tp", "layout.pp", "layout.dp"];
    Some((
        name,
        ranks
            .iter()
            .fold(1, |all: i64, key| all.saturating_mul(draft.whole(key, 1))),
    ))
}

/// Holds the devices of a pod against what the layout takes.
fn devices(draft: &mut Draft, catalog: &Catalog) {
    if draft.facts.group_size.is_none() {
        draft.facts.group_size.clone_from(&draft.facts.machines);
    }
    let ranks = ["layout.tp", "layout.pp", "layout.dp"]
        .iter()
        .fold(1i64, |all, key| all.saturating_mul(draft.whole(key, 1)));
    let pods = draft.facts.group_size.as_ref().map_or(1, |(n, _)| *n);
    if let Some((devices, origin)) = draft.facts.pod_devices.clone() {
        let devices = devices.saturating_mul(cores(draft, &origin, catalog));
        let (more, beside) = (draft.facts.more_devices, draft.facts.more_pods);
        let all = devices.saturating_mul(pods).saturating_add(more);
        // Data-parallel copies of a dense model share the pod as replicas.
        let copies = draft.facts.data_parallel.as_ref().map_or(1, |(n, _)| *n);
        let copies = if draft.get("layout.dp").is_some() {
            1
        } else {
            copies
        };
        let used = ranks.saturating_mul(copies);
        let of = match (pods, more) {
            (1, 0) => String::new(),
            (n, 0) => format!(" x {n} pods"),
            (n, more) => format!(" x {n} pods and {more} in {beside} more"),
        };
        if all != used {
            draft.warn(format!(
                "{}: {}: {devices} devices a pod{of}, but the engine's layout takes {used} (tp {} x pp {} x dp {}){}",
                origin.place,
                shown(&origin.key),
                draft.whole("layout.tp", 1),
                draft.whole("layout.pp", 1),
                draft.whole("layout.dp", 1).max(copies),
                if all > used { "; the others idle" } else { "; it would not start unless further pods hold the rest, of which no file says anything" }
            ));
        }
        draft.used(
            &origin,
            format!("{devices} devices a pod{of}; the layout takes {used}"),
        );
    }
    if let Some((n, origin)) = draft.facts.group_size.clone() {
        draft.used(&origin, format!("{n} pods hold one replica"));
    }
}

/// Ranks of what a pod calls a device: the cores of a Neuron chip, where it asks for chips.
fn cores(draft: &Draft, origin: &Origin, catalog: &Catalog) -> i64 {
    if origin.key.contains(super::pod::CORES) || !origin.key.contains("neuron") {
        return 1;
    }
    let instance = draft.get("hardware.instance").and_then(|n| n.as_str());
    let chip = instance
        .and_then(|n| catalog.instance(n).ok())
        .map(|i| i.accelerator.clone());
    let named = draft.get("hardware.accelerator").and_then(|n| n.as_str());
    let chip = chip.or_else(|| named.map(str::to_owned));
    let chip = chip.and_then(|n| catalog.accelerator(&n).ok());
    chip.map_or(1, |c| i64::from(c.ranks_per_device))
}

/// Pods that the engine counts as machines of one replica: of `replicas` so many hold one.
fn machines(draft: &mut Draft) {
    let Some((machines, from)) = draft.facts.machines.clone().filter(|(n, _)| *n > 1) else {
        return;
    };
    // A set that counts groups of pods has divided already.
    if draft.facts.is_grouped {
        return;
    }
    if let Some((n, origin)) = draft
        .facts
        .replicas
        .iter_mut()
        .find(|(n, _)| *n >= machines)
    {
        *n /= machines;
        let (n, origin) = (*n, origin.clone());
        draft.used(
            &origin,
            format!(
                "pods, of which {machines} hold one replica ({}): {n}",
                from.place
            ),
        );
    }
}

/// The product of all that multiplies replicas.
fn replicas(draft: &mut Draft) {
    machines(draft);
    let factors = draft.facts.replicas.clone();
    let product = factors
        .iter()
        .fold(1i64, |all, (n, _)| all.saturating_mul(*n));
    match draft.facts.servers.clone() {
        Some((n, origin)) if factors.is_empty() => draft.set("layout.replicas", n, &origin),
        Some((n, origin)) => {
            if n != product {
                draft.warn(format!(
                    "{}: the proxy knows {n} servers, but {product} replicas are deployed",
                    origin.place
                ));
            }
            draft.used(&origin, format!("{n} servers behind the proxy"));
        }
        None => {}
    }
    if let Some((least, origin)) = draft.facts.least_replicas.clone() {
        if product < least || factors.is_empty() {
            for (n, from) in &factors {
                draft.used(
                    from,
                    format!("{n}, but the autoscaler leaves at least {least}"),
                );
            }
            draft.set("layout.replicas", least.max(1), &origin);
            return;
        }
        draft.used(&origin, format!("the workload starts with {product}"));
    }
    if let Some((_, last)) = factors.last() {
        for (n, origin) in &factors[..factors.len() - 1] {
            draft.used(origin, format!("a factor of {n} in layout.replicas"));
        }
        if product == 0 {
            draft.fault(last.fault(
                "0 replicas serve nobody; write at least 1, or import the autoscaler's minimum",
            ));
            return;
        }
        draft.set("layout.replicas", product, last);
    }
}

/// A load where no file gives one, and an end of the run; a stream for each of the `models`, where there are several.
fn load(draft: &mut Draft, models: &[String]) {
    if draft.streams().is_empty() {
        for model in models {
            assumed_load(draft, Some(model));
        }
        if models.is_empty() {
            assumed_load(draft, None);
        }
    } else if models.len() > 1 && (draft.streams().iter()).any(|s| !s.keys.contains_key("model")) {
        draft.fault(Fault::new(
            first_file(draft),
            "",
            format!(
                "the deployments serve {}, and the load does not say which of them it asks for; import them without it, and write a [[workload]] with model = \"...\" for each",
                shown(&models.join(" and "))
            ),
        ));
    }
    let ends = |s: &Stream| {
        let arrival = s.keys.get("arrival").and_then(|a| a.as_table());
        let kind = arrival.and_then(|a| a.get("kind")).and_then(|k| k.as_str());
        s.keys.contains_key("requests") || matches!(kind, Some("burst" | "trace" | "steps"))
    };
    if !draft.has_section("run") && !draft.streams().iter().all(ends) {
        draft.assume("run.requests", REQUESTS, "no file says how long the run is");
    }
}

/// The load of one model that no file gives.
fn assumed_load(draft: &mut Draft, model: Option<&String>) {
    let (rate, prompt, output) = LOAD;
    let arrival: toml::Table = [("kind", "poisson"), ("rate", rate)]
        .map(|(k, v)| (k.to_owned(), v.into()))
        .into_iter()
        .collect();
    let mut keys = toml::Table::new();
    if let Some(model) = model {
        keys.insert("model".into(), model.clone().into());
    }
    keys.insert("arrival".into(), arrival.into());
    keys.insert("prompt".into(), prompt.into());
    keys.insert("output".into(), output.into());
    let why = "no file gives a load; import a benchmark's command beside the files, or write your traffic here";
    draft.report.defaults.push(crate::report::Default {
        key: "workload".into(),
        value: format!("Poisson, {rate}, {prompt} in, {output} out"),
        note: why.into(),
    });
    draft.stream(Stream {
        keys,
        from: format!("default: {why}"),
    });
}

/// The scenario's text, once the simulator has read it.
fn checked(draft: Draft) -> Result<Imported, Error> {
    let mut heading = vec!["Imported from:".to_owned()];
    let files = &draft.report.files;
    heading.extend(files.iter().map(|f| format!("  {} ({})", f.file, f.kind)));
    let lost = draft.report.keys.iter().filter(|k| {
        use crate::report::Fate::{NotModelled, NotUnderstood};
        matches!(k.fate, NotModelled | NotUnderstood)
    });
    let mut lost = lost.peekable();
    if lost.peek().is_some() {
        heading.push("Not in this scenario:".to_owned());
    }
    heading.extend(lost.map(|k| format!("  {}:{} {} ({})", k.file, k.line, k.key, k.note)));
    let text = draft.text(&heading);
    if let Err(e) = Scenario::parse(&text, "import.toml", &[]) {
        let fault = |issue: &sim::scenario::Issue| match draft.origin(&issue.path) {
            Some(origin) => origin.fault(format!("{}: {}", issue.path, issue.message)),
            None => {
                let place = Place {
                    file: Arc::from("the scenario"),
                    line: 0,
                };
                Fault::new(place, issue.path.clone(), issue.message.clone())
            }
        };
        return Err(Error {
            faults: e.issues().iter().map(fault).collect(),
        });
    }
    Ok(Imported {
        scenario: text,
        report: draft.report,
    })
}

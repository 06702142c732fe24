//! Names that are not known: what was probably meant, and what there is.

use std::collections::BTreeMap;

use hwmodels::catalog::Catalog;
use hwmodels::error::Error;

/// Why there is no instance type `name`: it may be an accelerator, whose instance types are named then.
pub(super) fn no_instance(catalog: &Catalog, name: &str, e: &Error) -> String {
    let Ok(chip) = catalog.accelerator(name) else {
        return e.to_string();
    };
    if !matches!(e, Error::Unknown { .. }) {
        return e.to_string();
    }
    let mut by_count: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for i in catalog.instances().filter(|i| i.accelerator == chip.name) {
        by_count.entry(i.devices).or_default().push(&i.name);
    }
    let types: Vec<String> = by_count
        .iter()
        .map(|(n, names)| format!("{} ({n} x)", names.join(", ")))
        .collect();
    let own = format!(
        "for a machine of your own write accelerator = \"{name}\" and count = 8 instead of instance"
    );
    let shown: String = name.chars().take(60).collect();
    match types.is_empty() {
        true => format!(
            "`{shown}` is an accelerator ({}), and no instance type of the catalog has it; {own}",
            chip.name
        ),
        false => format!(
            "`{shown}` is an accelerator ({}), not an instance type; those with it are {}; {own}",
            chip.name,
            types.join("; ")
        ),
    }
}

/// The complaint about an unknown profile, with all that there are.
pub(super) fn no_profile(e: &Error) -> String {
    let Error::Unknown { name, nearest, .. } = e else {
        return e.to_string();
    };
    let names: Vec<&str> = hwmodels::profiles::names().collect();
    let hint = match nearest {
        Some(n) => format!("; did you mean `{n}`?"),
        None => ".".to_owned(),
    };
    format!(
        "unknown profile `{name}`{hint} There are: auto, analytic, {}, and the path of a profile file (.toml)",
        names.join(", ")
    )
}

//! Prefill and decode apart: two sides of one deployment as `[[pool]]`.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::draft::{Draft, Side};

/// Writes what both sides say, once each is settled: the draft holds the side that decodes.
///
/// What both say alike stays at the top of the scenario; what differs stands in each pool.
pub fn pools(draft: &mut Draft, mut prefill: Side) {
    let mut decode = Side::default();
    draft.swap(&mut decode);
    let Some(origin) = prefill.origin().or(decode.origin()).cloned() else {
        return;
    };
    let sides = [&mut prefill, &mut decode];
    let engines = [sides[0].section("engine"), sides[1].section("engine")];
    let same = |key: &str| engines[0].get(key) == engines[1].get(key);
    let own = |i: usize| -> Table {
        let differs = engines[i].iter().filter(|(key, _)| !same(key));
        differs.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let mut pools = Vec::new();
    for (i, name) in ["prefill", "decode"].into_iter().enumerate() {
        let mut layout: BTreeMap<String, Value> = sides[i].section("layout");
        let replicas = layout.remove("replicas").unwrap_or(Value::Integer(1));
        let mut pool = Table::new();
        pool.insert("name".into(), name.into());
        pool.insert("role".into(), name.into());
        pool.insert("replicas".into(), replicas);
        let layout: Table = layout.into_iter().collect();
        for (key, table) in [("layout", layout), ("engine", own(i))] {
            if !table.is_empty() {
                pool.insert(key.into(), Value::Table(table));
            }
        }
        pools.push(Value::Table(pool));
    }
    draft.set("pool", Value::Array(pools), &origin);
    decode.keep("engine.", |path| {
        same(path.strip_prefix("engine.").unwrap_or(path))
    });
    draft.swap(&mut decode);
}

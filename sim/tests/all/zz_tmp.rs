#[test]
fn write_reference() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scenario.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- keys: begin -->\n", "<!-- keys: end -->");
    let start = page.find(begin).unwrap() + begin.len();
    let stop = page.find(end).unwrap();
    let new = format!(
        "{}{}{}",
        &page[..start],
        sim::scenario::reference::markdown(),
        &page[stop..]
    );
    std::fs::write(&path, new).unwrap();
}

//! Prices by region, from a file of the user's: the catalog has one price per instance type.
//!
//! A CSV file with a header: `instance,region,usd_per_h` or `instance,region,multiplier` (of the catalog's price), or both columns with one of them empty.
//! `*` in an instance's name stands for any text; the first row that fits counts. A row that names an accelerator has the price of one.

use serde::Deserialize;

use crate::Error;

/// Most rows of a file.
const MOST_ROWS: usize = 100_000;
/// Prices that can be [USD/h].
const USD: std::ops::RangeInclusive<f64> = 1e-4..=1e5;
/// Multipliers that can be.
const MULTIPLIER: std::ops::RangeInclusive<f64> = 0.01..=100.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    instance: String,
    region: String,
    usd_per_h: Option<f64>,
    multiplier: Option<f64>,
}

/// A file of prices.
#[derive(Clone, Debug)]
pub struct Prices {
    rows: Vec<Row>,
    /// Regions that are allowed; empty: all of the file.
    regions: Vec<String>,
}

impl Prices {
    /// Reads a file called `name`; `regions` are those that are allowed, empty: all.
    ///
    /// # Errors
    /// A row that is none, with its line; a region that the file does not have.
    pub fn parse(text: &str, name: &str, regions: &[String]) -> Result<Prices, Error> {
        let mut rows: Vec<Row> = Vec::new();
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .comment(Some(b'#'))
            .from_reader(text.as_bytes());
        let headers = reader
            .headers()
            .map_err(|e| Error::input(format!("{name}: {e}")))?
            .clone();
        let mut record = csv::StringRecord::new();
        loop {
            let more = reader
                .read_record(&mut record)
                .map_err(|e| Error::input(format!("{name}: {e}")))?;
            if !more {
                break;
            }
            let line = record.position().map_or(0, |p| p.line());
            let wrong = |why: &str| Error::input(format!("{name}:{line}: {why}"));
            let row: Row = record.deserialize(Some(&headers)).map_err(|e| {
                wrong(&format!(
                    "must be instance,region,usd_per_h or instance,region,multiplier: {e}"
                ))
            })?;
            match (row.usd_per_h, row.multiplier) {
                (Some(usd), None) if USD.contains(&usd) => {}
                (None, Some(m)) if MULTIPLIER.contains(&m) => {}
                (Some(_), Some(_)) | (None, None) => {
                    return Err(wrong("give usd_per_h or multiplier, one of them"));
                }
                _ => {
                    return Err(wrong(
                        "the price cannot be: 0.0001 to 100000 USD/h, or 0.01 to 100 times the catalog's",
                    ));
                }
            }
            if row.region.is_empty() || row.instance.is_empty() {
                return Err(wrong("instance and region must be named"));
            }
            rows.push(row);
            if rows.len() > MOST_ROWS {
                return Err(wrong(&format!("more than {MOST_ROWS} rows")));
            }
        }
        if rows.is_empty() {
            return Err(Error::input(format!("{name}: holds no price")));
        }
        for region in regions {
            if !rows.iter().any(|r| r.region == *region) {
                return Err(Error::input(format!(
                    "plan.regions: {name} has no region `{region}`"
                )));
            }
        }
        Ok(Prices {
            rows,
            regions: regions.to_vec(),
        })
    }

    /// The lowest price and its region, of those that are allowed [USD/h], of what the rows whose name is `named` are of; `catalog` is its price there.
    pub fn lowest(
        &self,
        named: impl Fn(&str) -> bool,
        catalog: Option<f64>,
    ) -> Option<(f64, &str)> {
        let mut best: Option<(f64, &str)> = None;
        let mut seen: Vec<&str> = Vec::new();
        for row in self.rows.iter().filter(|r| named(&r.instance)) {
            let is_allowed = self.regions.is_empty() || self.regions.contains(&row.region);
            if !is_allowed || seen.contains(&row.region.as_str()) {
                continue;
            }
            seen.push(&row.region);
            let usd = row.usd_per_h.or_else(|| Some(row.multiplier? * catalog?));
            if let Some(usd) = usd
                && best.is_none_or(|(b, _)| usd < b)
            {
                best = Some((usd, &row.region));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::pattern::allows;

    fn prices(text: &str, regions: &[&str]) -> Result<Prices, Error> {
        let regions: Vec<String> = regions.iter().map(|r| (*r).to_owned()).collect();
        Prices::parse(text, "prices.csv", &regions)
    }

    #[test]
    fn the_lowest_price_of_an_allowed_region_counts() {
        let g5 = |row: &str| allows(row, "g5.2xlarge");
        let text = "instance,region,usd_per_h,multiplier\ng5.2xlarge,here,2.5,\n*,here,,1\n*,there,,1.5\ng5.*,nowhere,0.1,\n";
        let all = prices(text, &[]).unwrap();
        assert_eq!(all.lowest(g5, Some(1.2)), Some((0.1, "nowhere")));
        // The first row of a region that fits.
        assert_eq!(
            prices(text, &["here"]).unwrap().lowest(g5, Some(1.2)),
            Some((2.5, "here"))
        );
        let two = prices(text, &["here", "there"]).unwrap();
        let (usd, region) = two.lowest(g5, Some(1.2)).unwrap();
        assert!((usd - 1.8).abs() < 1e-12 && region == "there");
        assert_eq!(prices(text, &["there"]).unwrap().lowest(g5, None), None);
    }

    #[test]
    fn wrong_rows_are_named() {
        for (text, why) in [
            ("instance,region\n", "no price"),
            ("instance,region,usd_per_h\nx,y,z\n", "prices.csv:2"),
            ("instance,region,usd_per_h\nx,y,-1\n", "cannot be"),
            (
                "instance,region,usd_per_h,multiplier\nx,y,1,1\n",
                "one of them",
            ),
            ("instance,region,price\nx,y,1\n", "prices.csv:2"),
            ("instance,region,usd_per_h\n,y,1\n", "named"),
        ] {
            let e = prices(text, &[]).unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
        let e = prices("instance,region,usd_per_h\nx,y,1\n", &["z"]).unwrap_err();
        assert!(e.to_string().contains("no region `z`"));
    }
}

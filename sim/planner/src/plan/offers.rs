//! What deployments can be made of: whole instances, or accelerators that are rented one by one.
//!
//! Clouds rent parts of a machine, and pods share nodes, so a replica need not pay for a whole instance. A slice is as many accelerators of one machine as
//! a replica takes, joined as in that machine. It costs as many times the price of one accelerator, which is `plan.gpu_price`, a row of `plan.prices` that
//! names the accelerator, or the share of an instance that holds several.

use hwmodels::accelerator::Accelerator;
use hwmodels::catalog::Catalog;
use hwmodels::instance::Instance;
use hwmodels::ops::collective::HostPath;
use sim::report::text::figure;

use super::pattern::allows;
use super::prices::Prices;
use super::report::{Aside, Rejection};
use crate::Error;

/// Accelerators of a machine, where neither the question nor an instance type of the catalog says how many there are.
const MACHINE: u32 = 8;

/// What a question says of hardware and prices.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Instance types as written: names, names with `*` for any text, names of accelerators.
    pub instances: Vec<String>,
    /// Accelerators that are rented one by one.
    pub accelerators: Vec<String>,
    /// Accelerators of a machine, of which a replica takes no more.
    pub count: Option<u32>,
    /// Whether accelerators of `instances` are rented one by one too.
    pub slices: bool,
    /// Price of an accelerator [USD/h].
    pub gpu_price: Option<f64>,
    /// Price of an instance [USD/h].
    pub price: Option<f64>,
    /// Which of the catalog's prices.
    pub price_date: Option<String>,
    /// How bytes travel through the host of a machine whose accelerators are rented one by one.
    pub host_path: Option<HostPath>,
}

/// One thing that can be rented, in any number.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// As answers call it: the instance type, or the accelerator.
    pub name: String,
    /// Name in the question's catalog of what a replica is placed on: the instance type, or the machine that holds the accelerators.
    pub place: String,
    /// Its accelerator's name in the catalog.
    pub accelerator: String,
    /// Accelerators of an instance; of the machine where they are rented one by one.
    pub devices: u32,
    /// Whether accelerators are rented one by one.
    pub is_slice: bool,
    /// How bytes travel through the host of the machine, where somebody says.
    pub host_path: Option<HostPath>,
    /// Price of an instance, or of an accelerator [USD/h]; none where nobody says.
    pub usd_per_hour: Option<f64>,
    /// Region of that price.
    pub region: Option<String>,
}

/// All that a question allows.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// In the order of the question, at least one.
    pub list: Vec<Offer>,
    /// Whether deployments are ranked by their number of accelerators: something that was asked for has no price.
    pub by_devices: bool,
    /// Instance types that another makes superfluous.
    pub(super) rejected: Vec<Rejection>,
    /// What the reader must know of prices.
    pub(super) notes: Vec<String>,
}

/// A price [USD/h] and the region that it is of, where they are known.
type Priced = Option<(f64, Option<String>)>;

impl Offers {
    /// What `asked` allows. Machines that hold accelerators to be rented one by one are added to `catalog`.
    ///
    /// # Errors
    /// Names that the catalog does not have, and prices that are missing where others are given.
    pub(super) fn of(
        asked: &Asked,
        prices: Option<&Prices>,
        catalog: &mut Catalog,
    ) -> Result<Offers, Error> {
        let mut offers = Offers::default();
        if !asked.instances.is_empty() || asked.accelerators.is_empty() {
            offers.instances(asked, prices, catalog)?;
        }
        for name in &asked.accelerators {
            offers.accelerator(name, asked, prices, catalog)?;
        }
        let unpriced: Vec<&str> = (offers.list.iter())
            .filter(|o| o.usd_per_hour.is_none())
            .map(|o| o.name.as_str())
            .collect();
        if !unpriced.is_empty() {
            offers.by_devices = true;
            offers.notes.push(format!(
                "no price of {} is known, so deployments are ranked by their number of accelerators; give hardware.price, plan.gpu_price or plan.prices",
                unpriced.join(", ")
            ));
        }
        Ok(offers)
    }

    /// Adds the instance types that are asked for, without those that cost more than another with the same accelerators.
    fn instances(
        &mut self,
        asked: &Asked,
        prices: Option<&Prices>,
        catalog: &mut Catalog,
    ) -> Result<(), Error> {
        let price = |i: &Instance| price_of(i, asked, prices);
        let unique = named(asked, prices, catalog)?;
        let kept = self.undominated(&unique, asked, &price);
        for i in &kept {
            let priced = price(i);
            self.list.push(Offer {
                name: i.name.clone(),
                place: i.name.clone(),
                accelerator: i.accelerator.clone(),
                devices: i.devices,
                is_slice: false,
                host_path: None,
                usd_per_hour: priced.as_ref().map(|p| p.0),
                region: priced.and_then(|p| p.1),
            });
        }
        if !asked.slices {
            return Ok(());
        }
        // Accelerators of those with several; of each kind the cheapest.
        let mut kinds: Vec<(String, Option<HostPath>)> = Vec::new();
        for i in kept.iter().filter(|i| i.devices > 1) {
            let kind = (i.accelerator.clone(), i.host_path);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for (accelerator, host_path) in kinds {
            let of_kind = |i: &&Instance| {
                i.accelerator == accelerator && i.host_path == host_path && i.devices > 1
            };
            let these: Vec<&Instance> = kept.iter().filter(of_kind).collect();
            let share = cheapest_share(&these, &price);
            let most = these.iter().map(|i| i.devices).max().unwrap_or(MACHINE);
            let asked = Asked {
                count: Some(asked.count.unwrap_or(most)),
                host_path,
                ..asked.clone()
            };
            self.slice(&accelerator, &asked, prices, share, catalog)?;
        }
        Ok(())
    }

    /// Adds an accelerator that is rented one by one.
    fn accelerator(
        &mut self,
        name: &str,
        asked: &Asked,
        prices: Option<&Prices>,
        catalog: &mut Catalog,
    ) -> Result<(), Error> {
        let chip = (catalog.accelerator(name))
            .map_err(|e| Error::input(format!("hardware.accelerator: {e}")))?;
        let accelerator = chip.name.clone();
        let all: Vec<Instance> = (catalog.instances())
            .filter(|i| i.accelerator == accelerator)
            .cloned()
            .collect();
        let most = all.iter().map(|i| i.devices).max().unwrap_or(MACHINE);
        let asked = Asked {
            count: Some(asked.count.unwrap_or(most)),
            ..asked.clone()
        };
        let these: Vec<&Instance> = all.iter().collect();
        let share = cheapest_share(&these, &|i| price_of(i, &asked, prices));
        self.slice(&accelerator, &asked, prices, share, catalog)
    }

    /// Adds `accelerator` at the question's price, at that of its file, or as a share of an instance.
    fn slice(
        &mut self,
        accelerator: &str,
        asked: &Asked,
        prices: Option<&Prices>,
        share: Option<Share>,
        catalog: &mut Catalog,
    ) -> Result<(), Error> {
        if (self.list.iter()).any(|o| o.is_slice && o.accelerator == accelerator) {
            return Ok(());
        }
        let count = asked.count.unwrap_or(MACHINE);
        let place = format!("machine of {count} x {accelerator}");
        catalog
            .add_machine(&place, accelerator, count, asked.host_path)
            .map_err(|e| Error::input(format!("hardware.accelerator: {e}")))?;
        let chip = (catalog.accelerator(accelerator)).map_err(|e| Error::input(e.to_string()))?;
        let each = |usd: f64| {
            format!(
                "{accelerator} is rented one by one at {} USD/h",
                figure(usd)
            )
        };
        let (usd, region) = match (asked.gpu_price, listed(chip, prices), share) {
            (Some(usd), _, _) => (Some(usd), None),
            (None, Some((usd, region)), _) => (Some(usd), Some(region)),
            (None, None, Some(s)) => {
                self.notes.push(format!(
                    "{}: {} of {}'s {} USD/h, the lowest share of the instance types that hold it; plan.gpu_price gives another",
                    each(s.usd),
                    match s.devices {
                        1 => "all".to_owned(),
                        n => format!("1/{n}"),
                    },
                    s.instance,
                    figure(s.usd * f64::from(s.devices))
                ));
                (Some(s.usd), s.region)
            }
            (None, None, None) => (None, None),
        };
        self.list.push(Offer {
            name: accelerator.to_owned(),
            place,
            accelerator: accelerator.to_owned(),
            devices: count,
            is_slice: true,
            host_path: asked.host_path,
            usd_per_hour: usd,
            region,
        });
        Ok(())
    }

    /// Those that are named in full, and of the others the cheapest of each kind.
    fn undominated(
        &mut self,
        unique: &[Instance],
        asked: &Asked,
        price: &dyn Fn(&Instance) -> Priced,
    ) -> Vec<Instance> {
        // One that the user names is there because he wants to know.
        let named =
            |i: &Instance| (asked.instances.iter()).any(|p| *p == i.name || i.aliases.contains(p));
        let usd = |i: &Instance| price(i).map_or(f64::INFINITY, |p| p.0);
        let same = |a: &Instance, b: &Instance| {
            (&a.accelerator, a.devices, &a.intra_link) == (&b.accelerator, b.devices, &b.intra_link)
        };
        let mut kept = Vec::new();
        for (at, i) in unique.iter().enumerate() {
            let better = unique.iter().enumerate().find(|(other, o)| {
                let cheaper = usd(o) < usd(i) || (usd(o) == usd(i) && *other < at);
                same(o, i)
                    && cheaper
                    && o.network_bandwidth >= i.network_bandwidth.min(o.network_bandwidth)
            });
            match better {
                Some((_, o)) if !named(i) => {
                    let why = match usd(i).is_finite() {
                        true => format!("costs more than {} with the same accelerators", o.name),
                        false => format!("has the accelerators of {}, and no price", o.name),
                    };
                    Rejection::count(&mut self.rejected, Aside::Dominated, &i.name, &why, 1);
                }
                _ => kept.push(i.clone()),
            }
        }
        kept
    }
}

/// The instance types that the question names, each once; all with a price where it names none.
fn named(
    asked: &Asked,
    prices: Option<&Prices>,
    catalog: &Catalog,
) -> Result<Vec<Instance>, Error> {
    let priced = |i: &Instance| price_of(i, asked, prices).is_some();
    let wrong = |why: String| Err(Error::input(format!("hardware.instance: {why}")));
    let mut out: Vec<&Instance> = Vec::new();
    for pattern in &asked.instances {
        let chip =
            (catalog.accelerator(pattern).ok()).filter(|_| catalog.instance(pattern).is_err());
        if pattern.contains('*') || chip.is_some() {
            let fits = |i: &&Instance| match chip {
                Some(chip) => i.accelerator == chip.name,
                None => allows(pattern, &i.name),
            };
            let all: Vec<&Instance> = catalog.instances().filter(fits).collect();
            if all.is_empty() && chip.is_some() {
                return wrong(format!(
                    "no instance type of the catalog has {pattern}; hardware.accelerator = \"{pattern}\" (--gpu {pattern}) counts accelerators"
                ));
            }
            if all.is_empty() {
                return wrong(format!(
                    "no instance type of the catalog is called `{pattern}`"
                ));
            }
            let with_price: Vec<&Instance> = all.iter().copied().filter(|i| priced(i)).collect();
            match (with_price.is_empty(), prices) {
                (false, _) => out.extend(with_price),
                (true, None) => out.extend(all),
                (true, Some(_)) => {
                    return wrong(format!(
                        "plan.prices has no price of `{pattern}` in the regions that are allowed"
                    ));
                }
            }
        } else {
            let one = catalog
                .instance(pattern)
                .map_err(|e| Error::input(format!("hardware.instance: {e}")))?;
            if prices.is_some() && !priced(one) {
                return wrong(format!(
                    "plan.prices has no price of {pattern} in the regions that are allowed"
                ));
            }
            out.push(one);
        }
    }
    if asked.instances.is_empty() {
        out.extend(catalog.instances().filter(|i| priced(i)));
    }
    let mut unique: Vec<Instance> = Vec::new();
    for i in out {
        if !unique.iter().any(|u| u.name == i.name) {
            unique.push(i.clone());
        }
    }
    Ok(unique)
}

/// What an instance type costs: the question's price, its file's, or the catalog's.
fn price_of(i: &Instance, asked: &Asked, prices: Option<&Prices>) -> Priced {
    let catalog = asked.price.or_else(|| match &asked.price_date {
        Some(d) => i.price_on(d).map(|p| p.usd.usd_per_hour()),
        None => i.price().map(|p| p.usd.usd_per_hour()),
    });
    match prices {
        None => Some((catalog?, None)),
        Some(prices) => {
            let (usd, region) = prices.lowest(|row| allows(row, &i.name), catalog)?;
            Some((usd, Some(region.to_owned())))
        }
    }
}

/// What the file of prices says of an accelerator by its name.
fn listed(chip: &Accelerator, prices: Option<&Prices>) -> Option<(f64, String)> {
    let is_chip = |row: &str| {
        let names = std::iter::once(&chip.name).chain(&chip.aliases);
        names.into_iter().any(|n| n.eq_ignore_ascii_case(row))
    };
    let (usd, region) = prices?.lowest(is_chip, None)?;
    Some((usd, region.to_owned()))
}

/// An accelerator's share of an instance's price.
struct Share {
    instance: String,
    devices: u32,
    /// Of one accelerator [USD/h].
    usd: f64,
    region: Option<String>,
}

/// The lowest share of an accelerator in the price of `instances`; at equal shares the smallest instance.
fn cheapest_share(instances: &[&Instance], price: &dyn Fn(&Instance) -> Priced) -> Option<Share> {
    let shares = instances.iter().filter_map(|i| {
        let (usd, region) = price(i)?;
        Some(Share {
            instance: i.name.clone(),
            devices: i.devices,
            usd: usd / f64::from(i.devices),
            region,
        })
    });
    shares.min_by(|a, b| (a.usd.total_cmp(&b.usd)).then(a.devices.cmp(&b.devices)))
}

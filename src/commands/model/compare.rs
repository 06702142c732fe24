//! `servetwin model time --compare`: matrix products beside what the machine can do.

use anyhow::Context as _;
use engine::model::config::Config;
use engine::model::inspect;
use kernels::Isa;
use kernels::ceilings::{Products, arithmetic_rate, read_rate};
use kernels::dtype::WeightDtype;
use kernels::pool::Threads;
use serde::Serialize;

use super::{Time, told};
use crate::exit_code;
use crate::output::{print, print_json};
use crate::progress;

/// Time that each figure is measured for; three runs if they take longer [s].
const BUDGET_S: f64 = 0.5;
/// Weights are taken from this much memory at most, whatever the size of the model [bytes].
const MOST_WEIGHT_BYTES: usize = 512 << 20;
const DTYPES: [WeightDtype; 3] = [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16];

/// What the machine can do with an instruction set.
#[derive(Serialize)]
struct Ceiling {
    isa: &'static str,
    read_bytes_per_s: f64,
    flop_per_s: f64,
}

/// What the products of some layers took.
#[derive(Serialize)]
struct Row {
    isa: &'static str,
    dtype: &'static str,
    /// Rows of the products: tokens of a prompt, or sequences that decode.
    tokens: u32,
    best_s: f64,
    /// Weights read, over the time.
    bytes_per_s: f64,
    /// Of the bandwidth that reads of memory reach [ratio]. Above one where weights stay in caches.
    of_bandwidth: f64,
    flop_per_s: f64,
    /// Of the peak of the instruction set [ratio].
    of_peak: f64,
}

/// Everything that is printed.
#[derive(Serialize)]
struct Comparison {
    threads: u32,
    /// Layers of the model whose products are timed.
    layers: usize,
    weights: usize,
    ceilings: Vec<Ceiling>,
    products: Vec<Row>,
}

/// Runs the command.
pub(super) fn run(args: &Time) -> anyhow::Result<u8> {
    let facts = inspect(args.dir.as_deref(), None).map_err(told)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads as usize)
        .build()
        .context("cannot start threads")?;
    let comparison = pool.install(|| measure(args, &facts.config));
    if args.json {
        print_json(&comparison)?;
    } else {
        print(&table(&facts.name, &comparison))?;
    }
    Ok(exit_code::OK)
}

/// Outputs and inputs of a layer's matrices, as the engine stacks them.
fn shapes(c: &Config) -> Vec<(usize, usize)> {
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    vec![
        (q + 2 * kv, c.hidden),
        (c.hidden, q),
        (2 * c.intermediate, c.hidden),
        (c.hidden, c.intermediate),
    ]
}

/// The fewest and the most sequences, and the longest prompt.
fn sizes(args: &Time) -> Vec<u32> {
    let mut sizes: Vec<u32> = [
        args.batches.iter().min(),
        args.batches.iter().max(),
        args.prompts.iter().max(),
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn measure(args: &Time, config: &Config) -> Comparison {
    let threads = Threads(args.threads as usize);
    let (isas, sizes, shapes) = (Isa::available(), sizes(args), shapes(config));
    let weights: usize = shapes.iter().map(|(rows, cols)| rows * cols).sum();
    let layers = (MOST_WEIGHT_BYTES / size_of::<f32>() / weights).clamp(1, config.layers);
    let bar = progress::runs(
        (isas.len() * (1 + DTYPES.len() * sizes.len())) as u64,
        "figures",
    );
    let mut ceilings = Vec::new();
    for isa in &isas {
        ceilings.push(Ceiling {
            isa: isa.name(),
            read_bytes_per_s: read_rate(*isa, threads, BUDGET_S),
            flop_per_s: arithmetic_rate(*isa, threads, BUDGET_S),
        });
        bar.inc(1);
    }
    // Whichever instructions read fastest: the memory is one.
    let bandwidth = ceilings
        .iter()
        .map(|c| c.read_bytes_per_s)
        .fold(0.0, f64::max);
    let mut products = Vec::new();
    for dtype in DTYPES {
        let matrices = Products::new(dtype, &shapes, layers);
        for (isa, ceiling) in isas.iter().zip(&ceilings) {
            for &tokens in &sizes {
                let best_s = matrices.time(*isa, threads, tokens as usize, BUDGET_S);
                let bytes_per_s = (matrices.weights() * dtype.bytes()) as f64 / best_s;
                let flop_per_s = 2.0 * matrices.weights() as f64 * f64::from(tokens) / best_s;
                products.push(Row {
                    isa: isa.name(),
                    dtype: dtype.name(),
                    tokens,
                    best_s,
                    bytes_per_s,
                    of_bandwidth: bytes_per_s / bandwidth,
                    flop_per_s,
                    of_peak: flop_per_s / ceiling.flop_per_s,
                });
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Comparison {
        threads: args.threads,
        layers,
        weights: weights * layers,
        ceilings,
        products,
    }
}

fn table(name: &str, c: &Comparison) -> String {
    let mut text = format!(
        "This machine, {} thread(s)\n{:>9} {:>12} {:>10}\n",
        c.threads, "set", "reads [GB/s]", "[GFLOP/s]"
    );
    for ceiling in &c.ceilings {
        text += &format!(
            "{:>9} {:>12.1} {:>10.1}\n",
            ceiling.isa,
            ceiling.read_bytes_per_s / 1e9,
            ceiling.flop_per_s / 1e9
        );
    }
    text += &format!(
        "\nMatrix products of {name}: {} layers, {:.1} M weights; the shortest of some runs\n{:>9} {:>5} {:>7} {:>9} {:>8} {:>13} {:>9} {:>8}\n",
        c.layers,
        c.weights as f64 / 1e6,
        "set",
        "dtype",
        "tokens",
        "time [ms]",
        "[GB/s]",
        "of bandwidth",
        "[GFLOP/s]",
        "of peak"
    );
    for r in &c.products {
        text += &format!(
            "{:>9} {:>5} {:>7} {:>9.3} {:>8.1} {:>11.0} % {:>9.1} {:>6.0} %\n",
            r.isa,
            r.dtype,
            r.tokens,
            1e3 * r.best_s,
            r.bytes_per_s / 1e9,
            100.0 * r.of_bandwidth,
            r.flop_per_s / 1e9,
            100.0 * r.of_peak
        );
    }
    text + "Few tokens are bound by the bandwidth (above 100 %: weights that stay in caches), many by the peak.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_multiplied_are_all_matrices_of_the_layers() {
        let c = engine::model::init::shape(30_000_000).unwrap();
        let layer: usize = shapes(&c).iter().map(|(rows, cols)| rows * cols).sum();
        // Beside them: embedding and head, two norms of each layer and the last one.
        let rest = 2 * c.vocab * c.hidden + (2 * c.layers + 1) * c.hidden;
        assert_eq!((layer * c.layers + rest) as u64, c.parameters());
    }
}

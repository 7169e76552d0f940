//! The figures of the proxy, side by side with a direct connection and with haproxy.
//!
//! 1. [`bed`]: a real API server, and two proxies in front of it, each over verified TLS and
//!    HTTP/2 on both legs, with two threads: `ctrlmesh` with its access log on and a policy of 20
//!    limits in force, and haproxy.
//! 2. [`rows`]: one measurement after the other. In each round of one, the ways take turns, so that
//!    a disturbance of the machine affects them all.
//! 3. [`table`]: medians over the rounds, as Markdown; CPU times are means. Delays are the excess of a way over the
//!    direct one of the same round.

mod bed;
mod counter;
mod figures;
mod rows;
mod running;
mod table;

use std::{io::Write, path::PathBuf};

use anyhow::Result;
use clap::{Parser, ValueEnum};

use self::{bed::TestBed, rows::Row, table::Table};

/// Measures ctrlmesh against a direct connection to a real API server and against haproxy, and
/// prints one Markdown table
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Args {
    /// The program to measure
    #[arg(long, value_name = "FILE")]
    ctrlmesh: PathBuf,

    /// The program of tests/e2e/clients/go
    #[arg(long, value_name = "FILE")]
    clients: PathBuf,

    /// What to measure, all of it unless told
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_enum)]
    rows: Vec<Row>,

    /// How often each way is measured; by the row load, twice as often
    #[arg(long, value_name = "COUNT", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How long one measurement of one way takes, where time and not number limits it
    #[arg(long, value_name = "SECONDS", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// How many ConfigMaps of 2 kB the list has
    #[arg(long, value_name = "COUNT", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    items: u32,

    /// How many connections churn opens and closes
    #[arg(long, value_name = "COUNT", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(100..=100_000))]
    cycles: u32,

    /// How long reviews are paced
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=600))]
    paced_seconds: u32,

    /// How many custom resources are converted
    #[arg(long, value_name = "COUNT", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    conversions: u32,
}

fn main() -> Result<()> {
    let mut args = Args::parse();
    if args.rows.is_empty() {
        args.rows = Row::value_variants().to_vec();
    }
    let bed = TestBed::start(&args)?;
    let mut table = Table::default();
    let measured = args.rows.iter().try_for_each(|row| row.measure(&args, &bed, &mut table));
    drop(bed);
    // Results from before a failure are printed too: they took minutes.
    std::io::stdout().lock().write_all(table.markdown(&args).as_bytes())?;
    measured
}

/// Prints one line of progress.
fn note(line: &str) {
    // Progress that cannot be shown is not worth a failure.
    let _ = writeln!(std::io::stderr(), "bench: {line}");
}

//! The row of Leases: what those of many pods cost the API server.
//!
//! The pods are one client with a connection each: as many proxies have no room on one machine.

use anyhow::{Context, Result};

use super::{milliseconds, number};
use crate::{Args, bed::TestBed, note, running::cpu_of, table::Table};

const PODS: &str = "2000";
const RINGS: u32 = 10;
/// Bytes of a claim: that of a config with a few limits.
const CLAIM: &str = "700";
/// The most cores of an API server.
const WANTED: f64 = 1.0;
/// Two renewals of each Lease, and more.
const LEAST: u32 = 30;

pub(super) fn leases(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    note(&format!("{PODS} Leases in {RINGS} rings"));
    for ring in 0..RINGS {
        bed.make_namespace(&format!("ring-{ring}"))?;
    }
    let (rings, seconds) = (RINGS.to_string(), args.seconds.max(LEAST).to_string());
    let client = ["--mode", "leases", "--namespace", "ring", "--rings", &rings, "--workers", PODS];
    let mut pods =
        bed.direct(&[&client[..], &["--bytes", CLAIM, "--seconds", &seconds]].concat())?;
    let server = || cpu_of(bed.api().server_pid().context("the API server has ended")?);
    pods.await_that("watches all Leases", super::LET_GO, |said| said.contains("\"open\""))?;
    let before = server()?;
    let figures = pods.figures()?;
    let took = number(&figures["seconds"])?;
    let cores = (server()? - before).as_secs_f64() / took;
    let events = number(&figures["events"])? / took;
    let title = format!(
        "{PODS} Leases in {RINGS} rings, {:.0} renewals and {events:.0} events a second, cores of \
         the API server",
        number(&figures["per_second"])?
    );
    table.cores(&title, cores, WANTED);
    note(&format!("renewals: p99 {:.1} ms", milliseconds(&figures, "p99_us")?));
    Ok(())
}

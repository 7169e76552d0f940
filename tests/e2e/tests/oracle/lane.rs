//! One server, and the seeds one after the other.

use std::{
    env,
    process::Command,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{ApiServer, AuditLevel, Rule as Right, ServiceAccount, ctrlmesh_binary};

use crate::oracle::{
    plan::{Gate, Plan},
    run::{self, Judged},
};

/// Seeds that always run: between them they have everything that a plan may have.
pub(crate) const FIXED: [u64; 6] = [0, 1979, 2890, 3479, 3747, 3999];
/// How many seeds are drawn from the time unless `ORACLE_SEEDS` says so.
const DRAWN: u64 = 10;
/// When none of these is begun any more, unless `ORACLE_SEEDS` says how many.
const TIME: Duration = Duration::from_secs(120);
/// After so many failures nothing new is learned.
const MOST_FAILURES: usize = 5;

pub(crate) struct Lane {
    pub(crate) api: ApiServer,
    pub(crate) account: ServiceAccount,
}

impl Lane {
    fn start(gate: Gate) -> Result<Self> {
        let mut builder = ApiServer::builder()
            .audit(AuditLevel::None)
            .feature_gate("CBORServingAndStorage", true);
        if gate == Gate::On {
            builder = builder.feature_gate("ShardedListAndWatch", true);
        }
        let api = builder.start()?;
        let account = api.service_account("oracle", "controller", &[Right::all()])?;
        let ours = Command::new(ctrlmesh_binary()?).arg("crds").output()?;
        ensure!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
        api.apply(&String::from_utf8(ours.stdout)?)?;
        api.apply(include_str!("../../../../deploy/sample/crd.yaml"))?;
        for crd in ["shardingconfigs.ctrlmesh.kusionstack.io", "widgets.demo.example.com"] {
            api.kubectl(&["wait", "--for=condition=Established", &format!("crd/{crd}")])?;
        }
        Ok(Self { api, account })
    }
}

/// Runs all seeds of a lane, also after one that failed.
pub(crate) fn run(gate: Gate) -> Result<()> {
    let lane = Lane::start(gate)?;
    let test = if gate == Gate::On { "sharding_server" } else { "plain_server" };
    let Seeds { seeds, is_timed } = Seeds::of_environment()?;
    let (mut failed, mut total, began) = (Vec::new(), Judged::default(), Instant::now());
    let mut count = 0;
    for seed in &seeds {
        if is_timed && count >= FIXED.len() && began.elapsed() > TIME {
            break;
        }
        count += 1;
        let plan = Plan::of(gate, *seed);
        println!("{test}: seed {seed}: {}", run::describe(&plan));
        let began = Instant::now();
        let done = run::seed(&lane, plan);
        let seconds = began.elapsed().as_secs_f64();
        let error = match done {
            Ok(judged) => {
                println!("{test}: seed {seed}: equal after {seconds:.1} s: {judged}");
                total += judged;
                continue;
            }
            Err(error) => error,
        };
        println!(
            "{test}: seed {seed}: FAILED after {seconds:.1} s: {error:#}\n\
             replay: ORACLE_SEED={seed} scripts/test -- --test e2e oracle::{test}"
        );
        failed.push(*seed);
        if failed.len() == MOST_FAILURES {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{test}: {count} seeds in {seconds:.0} s: {total}; failed: {failed:?}");
    if !failed.is_empty() {
        bail!("{test}: native and ours part in seeds {failed:?}; the output says how");
    }
    Ok(())
}

struct Seeds {
    seeds: Vec<u64>,
    /// Whether the time may be up before the last of them.
    is_timed: bool,
}

impl Seeds {
    fn of_environment() -> Result<Self> {
        let number = |name: &str| -> Result<Option<u64>> {
            let text = env::var(name).ok().filter(|text| !text.is_empty());
            text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
        };
        if let Some(seed) = number("ORACLE_SEED")? {
            return Ok(Self { seeds: vec![seed], is_timed: false });
        }
        let drawn = number("ORACLE_SEEDS")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let first = u64::from(now.subsec_micros()) + (now.as_secs() % 1000) * 1_000_000;
        let seeds = FIXED.into_iter().chain(first..first + drawn.unwrap_or(DRAWN)).collect();
        Ok(Self { seeds, is_timed: drawn.is_none() })
    }
}

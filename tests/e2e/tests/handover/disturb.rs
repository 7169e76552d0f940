//! The disturbances, none of which is in the way for ever.

use std::{fmt, thread, time::Duration};

use anyhow::Result;
use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::handover::scene::Scene;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    None,
    ProxyStandsStill,
    ServerStandsStill,
    ServerIsBehind,
    NetworkIsCut,
    AnswersAreLost,
    ProxyIsKilled,
}

/// The disturbances of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbances {
    All,
    /// None by which a watch ends.
    WithoutCuts,
}

impl Disturbance {
    /// At random. A proxy that was killed keeps its claim for a minute, since what it sent may take
    /// effect: that is rare.
    fn random(of: Disturbances, rng: &mut Rng) -> Self {
        match rng.usize(..80) {
            0 | 31..=42 if of == Disturbances::WithoutCuts => Self::None,
            0 => Self::ProxyIsKilled,
            1..=10 => Self::ProxyStandsStill,
            11..=20 => Self::ServerStandsStill,
            21..=30 => Self::ServerIsBehind,
            31..=36 => Self::NetworkIsCut,
            37..=42 => Self::AnswersAreLost,
            _ => Self::None,
        }
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing",
            Self::ProxyStandsStill => "a proxy stands still",
            Self::ServerStandsStill => "an API server stands still",
            Self::ServerIsBehind => "an API server is behind",
            Self::NetworkIsCut => "a network is cut",
            Self::AnswersAreLost => "answers are lost",
            Self::ProxyIsKilled => "a proxy is killed",
        })
    }
}

/// Does something at random, and undoes it.
pub(crate) fn disturb(scene: &mut Scene, of: Disturbances, rng: &mut Rng) -> Result<Disturbance> {
    let number = rng.usize(..scene.pods.len());
    let pause = Duration::from_millis(rng.u64(20..900));
    let disturbance = Disturbance::random(of, rng);
    let api = &scene.apis[number % 2];
    let pod = &mut scene.pods[number];
    match disturbance {
        Disturbance::None => {}
        Disturbance::ProxyIsKilled => {
            pod.proxy.kill()?;
            pass(pause);
            pod.proxy.start_again()?;
        }
        Disturbance::ProxyStandsStill => {
            pod.proxy.signal(Signal::SIGSTOP)?;
            pass(pause);
            pod.proxy.signal(Signal::SIGCONT)?;
        }
        Disturbance::ServerStandsStill => {
            api.pause()?;
            pass(pause);
            api.resume()?;
        }
        // Until the handover is over.
        Disturbance::ServerIsBehind => scene.apis[1].fall_behind(pause)?,
        Disturbance::NetworkIsCut => {
            pod.front.cut();
            pass(pause);
            pod.front.mend();
        }
        Disturbance::AnswersAreLost => {
            pod.front.lose_answers();
            pass(pause);
            pod.front.mend();
        }
    }
    Ok(disturbance)
}

#[allow(clippy::disallowed_methods, reason = "what is disturbed is so for a while")]
pub(crate) fn pass(time: Duration) {
    thread::sleep(time);
}

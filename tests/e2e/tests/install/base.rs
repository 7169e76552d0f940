//! `deploy/base` and `deploy/sample` as they stand, by kubectl alone, in any order of files.

use std::{path::Path, time::Instant};

use anyhow::{Result, ensure};
use ctrlmesh_e2e::{Binaries, Installed, sample, until};

use crate::install::{
    audit,
    scene::{LIMIT, settle},
};

/// The files of the sample; the scene has made what stands in the others.
const FILES: [&str; 4] = ["operator.yaml", "service.yaml", "widgets/widgets.yaml", "shards.yaml"];

#[test]
fn i12_the_base_and_the_sample_make_four_pods_in_two_shards_in_any_order_of_files() -> Result<()> {
    let scene = Installed::start_base(Binaries::from_env()?)?;
    // Pods first, ShardingConfigs last; then the other way.
    come_and_go(&scene, FILES.into_iter())?;
    come_and_go(&scene, FILES.into_iter().rev())?;

    // All at once, as its README does.
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/sample");
    let all = all.to_str().unwrap_or_default();
    scene.node().kubectl(&["apply", "-k", all])?;
    come(&scene)?;
    audit::none_refused(&scene)?;
    audit::by_themselves(&scene)
}

/// Waits until the pods are ready, in their order, and each shard has handled its own Widgets.
fn come(scene: &Installed) -> Result<()> {
    let applied = Instant::now();
    for pod in Installed::PODS {
        scene.wait_ready(pod, LIMIT)?;
        println!("{pod} is ready after {:.1} s", applied.elapsed().as_secs_f64());
    }
    scene.node().apply(&sample("widgets/widgets.yaml")?)?;
    ensure!(scene.shards().widgets()?.len() == 4, "other Widgets");
    settle(scene)
}

fn come_and_go(scene: &Installed, files: impl Iterator<Item = &'static str>) -> Result<()> {
    for file in files {
        scene.node().apply(&sample(file)?)?;
    }
    come(scene)?;
    for file in FILES {
        scene
            .node()
            .api()
            .kubectl_client()
            .run_with_input(&["delete", "-f", "-"], &sample(file)?)?;
    }
    until("the pods are gone", LIMIT, || Ok(scene.shards().pods()?.is_empty().then_some(())))
}

//! The certificate of the operator is replaced while it is in use.

use std::time::Instant;

use anyhow::{Context, Result};
use ctrlmesh_e2e::{NAMESPACE, until};

use crate::webhooks::{
    judge::LIMIT,
    load::{during, none_failed},
    number,
    world::World,
};

/// Replaces it so often (`ROTATIONS`), each time until every pod shows the new one.
pub(crate) fn under_load_fails_no_write(world: &World<'_>) -> Result<()> {
    let scene = world.scene;
    let rotations = number("ROTATIONS", 2)?;
    let ((), all) = during(scene, &world.namespaces[0].0, || {
        for turn in 0..rotations {
            let began = Instant::now();
            let new = scene.rotate()?;
            let look = format!("look=rotation-{turn}");
            // The kubelet looks once a minute, or when the pod changes.
            let pods = ["annotate", "pods", "--selector=shard", "--overwrite", &look];
            scene.node().kubectl(&[&pods[..], &["--namespace", NAMESPACE]].concat())?;
            until("every pod shows the new certificate", LIMIT, || {
                for pod in scene.installed().shards().items("pods")? {
                    if pod["metadata"]["labels"]["shard"].is_null() {
                        continue;
                    }
                    let address = pod["status"]["podIP"].as_str().context("an address")?;
                    if scene.shown_at(address.parse()?)? != new {
                        return Ok(None);
                    }
                }
                Ok(Some(()))
            })?;
            println!("certificate {turn} is shown after {:.1} s", began.elapsed().as_secs_f64());
        }
        Ok(())
    })?;
    none_failed("certificates are replaced", &all)
}

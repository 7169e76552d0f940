//! One target under libFuzzer, whose command line this is; the environment names the target.

#![no_main]

use std::{process::abort, sync::OnceLock};

use ctrlmesh_fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("CTRLMESH_FUZZ_TARGET").unwrap_or_default();
        TARGET.get_or_init(|| target(&name).unwrap_or_else(|| abort()));
    },
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            target(input);
        }
    }
);

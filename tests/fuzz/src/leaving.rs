//! Objects that leave a shard, as their last event shows them.

use ctrlmesh::wire::{Encoding, frames::Leaving};
use serde_json::Value;

const AT: u64 = 9_876_543_210;

/// A second change gives the same bytes. In JSON nothing else is changed.
pub(crate) fn change(input: &[u8]) {
    for encoding in [Encoding::Json, Encoding::Cbor, Encoding::Protobuf, Encoding::Yaml] {
        for deleted in [None, Some(1_800_000_000)] {
            let leaving = Leaving { at: AT, deleted };
            let Some(changed) = leaving.put_into(encoding, input) else { continue };
            assert_eq!(leaving.put_into(encoding, &changed).as_deref(), Some(&changed[..]));
            if encoding == Encoding::Json {
                let mut expected: Value = match serde_json::from_slice(input) {
                    Ok(value) => value,
                    // A number that fits no type, in a part that is not read.
                    Err(_) => continue,
                };
                let meta = &mut expected["metadata"];
                meta["resourceVersion"] = AT.to_string().into();
                if deleted.is_some() {
                    meta["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
                    meta["deletionGracePeriodSeconds"] = 0.into();
                }
                assert_eq!(serde_json::from_slice::<Value>(&changed).unwrap(), expected);
            }
        }
    }
}

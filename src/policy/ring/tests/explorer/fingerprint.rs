//! Fingerprints of states, 128 bits each.

use std::hash::{Hash, Hasher};

/// Two lanes of folded multiplications.
struct Lanes(u64, u64);

fn low(of: u128) -> u64 {
    u64::try_from(of & u128::from(u64::MAX)).unwrap()
}

fn fold(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    low(product >> 64) ^ low(product)
}

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(eight));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = fold(self.0 ^ n ^ 0x9e37_79b9_7f4a_7c15, 0xe703_7ed1_a0b4_28db);
        self.1 = fold(self.1.rotate_left(23) ^ n ^ 0xa076_1d64_78bd_642f, 0x8ebc_6af0_9c88_c6e3);
    }
}

pub(super) fn fingerprint(of: &impl Hash) -> u128 {
    let mut lanes = Lanes(0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321);
    of.hash(&mut lanes);
    u128::from(lanes.0) << 64 | u128::from(lanes.1)
}

/// The hasher of a map whose keys are fingerprints.
#[derive(Default)]
pub(super) struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, n: u128) {
        self.0 = low(n);
    }
}

//! Every instruction set against the reference implementation's ops.

mod common;
#[path = "../../device/tests/fixtures/mod.rs"]
mod fixtures;

use common::devices;

#[test]
fn activations_meet_their_goldens() {
    devices().iter().for_each(|kind| fixtures::activations(&kind[1]));
}

#[test]
fn norms_meet_their_goldens() {
    devices().iter().for_each(|kind| fixtures::norms(&kind[1]));
}

#[test]
fn the_gated_delta_rule_meets_its_golden() {
    devices().iter().for_each(|kind| fixtures::gated_delta_rule(&kind[1]));
}

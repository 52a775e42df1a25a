//! The reference device against the reference implementation's ops.

mod fixtures;

use turbospark_device::ReferenceDevice;

#[test]
fn activations_meet_their_goldens() {
    fixtures::activations(&ReferenceDevice);
}

#[test]
fn norms_meet_their_goldens() {
    fixtures::norms(&ReferenceDevice);
}

#[test]
fn the_gated_delta_rule_meets_its_golden() {
    fixtures::gated_delta_rule(&ReferenceDevice);
}

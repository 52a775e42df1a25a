//! What tests of fused kernels share.

use turbospark_device::{Buffer, Device, Op, Pass};

/// Runs ops in one pass, where neighbours may become one kernel, or each in a pass of its own.
pub(crate) fn run<'a>(device: &'a dyn Device, ops: impl IntoIterator<Item = Op<'a>>, together: bool) {
    let mut pass = Pass::new(device);
    for op in ops {
        if !together {
            std::mem::replace(&mut pass, Pass::new(device)).submit().unwrap();
        }
        pass.record(op);
    }
    pass.submit().unwrap();
}

/// All bytes of each.
pub(crate) fn bytes(device: &dyn Device, buffers: &[&Buffer]) -> Vec<Vec<u8>> {
    let read = |b: &&Buffer| {
        let mut bytes = vec![0; b.len()];
        device.read(b.bytes(), &mut bytes).unwrap();
        bytes
    };
    buffers.iter().map(read).collect()
}

//! What the adapter reaches with nothing else to do.

use std::time::{Duration, Instant};

use turbospark_device::op::{Copy, Matmul};
use turbospark_device::{Buffer, Device, DeviceError, Inputs, Limits, Pass, Peak, Precision, View};
use turbospark_tensor::DType;

use crate::{AdapterKind, WgpuDevice};

/// How long a measurement runs, at least.
const LONG: Duration = Duration::from_millis(300);

/// Passes as long as that.
const PASSES: usize = 3;

/// Bandwidth by copying more than any cache holds, products by the device's own kernels on a large square.
pub(crate) fn measure(device: &WgpuDevice) -> Result<Limits, DeviceError> {
    let software = device.adapter_kind() == AdapterKind::Software;
    let (bytes, side) = if software { (32 << 20, 256) } else { (512 << 20, 4096) };
    let most = usize::try_from(device.most_bytes()).unwrap_or(usize::MAX);
    let bytes = bytes.min(most / 256 * 256);
    let copied = {
        let [from, to] = ["copied from", "copied to"].map(|label| device.alloc(label, bytes));
        let (from, to) = (from?, to?);
        let all = |b| Buffer::view(b, 0, DType::F32, [bytes / 4]);
        let op = || Copy { from: all(&from), to: all(&to) };
        // Each byte is read and written.
        2.0 * bytes as f64 / seconds(device, &to, |pass| pass.copy(op()))?
    };
    let weights = if device.precision() == Precision::F32 { DType::F32 } else { DType::F16 };
    let rate = {
        let [x, out] = ["rows", "products"].map(|label| device.alloc(label, 4 * side * side));
        let (x, out, w) = (x?, out?, device.alloc("weights", weights.size() * side * side)?);
        let square = |b, dtype| Buffer::view(b, 0, dtype, [side, side]);
        let (rows, products) = (square(&x, DType::F32), square(&out, DType::F32));
        let time = seconds(device, &out, |pass| {
            pass.matmul(Matmul::new(rows, square(&w, weights), products));
        })?;
        2.0 * (side as f64).powi(3) / time
    };
    let inputs = if device.multiplies_f16() { Inputs::F16 } else { Inputs::F32 };
    Ok(Limits::new(1, copied, vec![Peak::new("gpu", inputs, rate)]))
}

/// Seconds that what `record` puts into a pass takes, of a pass long enough to be timed.
fn seconds<'a>(device: &'a WgpuDevice, out: &'a Buffer, record: impl Fn(&mut Pass<'a>)) -> Result<f64, DeviceError> {
    // An adapter that was idle takes a while to come to speed: the best of passes long enough counts.
    let (mut times, mut best, mut passes) = (1, f64::INFINITY, 0);
    loop {
        let began = Instant::now();
        let mut pass = Pass::new(device);
        (0..times).for_each(|_| record(&mut pass));
        pass.submit()?;
        // Reading waits for what was submitted.
        let first: View<'_> = out.view(0, DType::F32, [1]);
        device.read(first, &mut [0; 4])?;
        let spent = began.elapsed();
        if spent < LONG && times < 1 << 14 {
            times *= 2;
            continue;
        }
        best = best.min(spent.as_secs_f64() / f64::from(times));
        passes += 1;
        if passes == PASSES {
            return Ok(best);
        }
    }
}

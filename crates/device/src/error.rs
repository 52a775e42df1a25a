/// What a device refuses or fails at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An op's views don't fit each other. `scope` says where in the model it was recorded.
    #[error("{scope}: op {op}: {message}")]
    Op {
        /// The part of the model, such as `decoder layer 3`.
        scope: String,
        /// The op's name.
        op: &'static str,
        /// What came and what was wanted.
        message: String,
    },
    /// The device has no room for a buffer.
    #[error("no memory for {label}: {bytes} bytes were asked for")]
    OutOfMemory {
        /// What the buffer is for.
        label: String,
        /// Its size.
        bytes: usize,
    },
    /// A buffer of another device was handed in.
    #[error("a buffer of another device was used on device {0}")]
    ForeignBuffer(String),
    /// A read or write leaves its buffer.
    #[error("bytes {offset}..{end} lie outside a buffer of {len} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// The buffer's size.
        len: usize,
    },
    /// A weight could not be brought to the device.
    #[error("reading weights: {0}")]
    Weights(std::io::Error),
    /// Whoever asked for the pass wants it no longer.
    #[error("cancelled")]
    Cancelled,
    /// The device was lost, or its driver refused something that was thought to be right.
    #[error("{0}")]
    Failed(String),
    /// The options don't fit this device or machine.
    #[error("{0}")]
    Unsupported(String),
}

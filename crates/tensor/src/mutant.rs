//! One-line wrong models, switched on at run time by tests.
//!
//! Each mutant keeps every shape and still decodes fluently; a test suite that lets one live does not prove
//! the model. The switches exist only with the feature `mutants`; without it [`active`] is a constant `false`
//! and the compiler drops the wrong branch.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Which wrong line is in force.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Mutant { $($(#[doc = $doc])* $name,)* }

        impl Mutant {
            /// All of them, for the test that runs each.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$name,)*];
        }
    };
}

mutants! {
    /// Patch rows in raster order instead of merge-block order.
    PatchesInRasterOrder,
    /// A patch vector ordered (frame, channel, y, x).
    PatchFrameBeforeChannel,
    /// Sides rounded half up instead of half to even.
    SizeRoundsHalfUp,
    /// Rows resized before columns.
    ResizeRowsFirst,
    /// Bicubic kernel with a = -0.75.
    ResizeSharperKernel,
    /// EXIF orientation not applied.
    OrientationIgnored,
    /// Alpha dropped instead of laid on white.
    AlphaDropped,
    /// The vision rope turns v too.
    VisionRopeOnV,
    /// The vision rope takes column before row.
    VisionRopeAxesExchanged,
    /// The exact GELU in the vision block.
    VisionGeluErf,
    /// The tanh GELU in the merger.
    MergerGeluTanh,
    /// LayerNorm epsilon 1e-5 in the tower.
    VisionEps,
    /// Images of one call attend to each other.
    VisionOneSegment,
    /// Position rows with half-pixel centres.
    PositionHalfPixel,
    /// The deepstack merger normalises before it concatenates.
    DeepstackNormBeforeShuffle,
    /// Deepstack rows are added one layer late.
    DeepstackLate,
    /// Deepstack rows are added at the layers numbered as the vision blocks are.
    DeepstackAtBlockNumbers,
    /// Deepstack sets in reverse order.
    DeepstackReversed,
    /// mrope sections as contiguous blocks.
    MropeContiguous,
    /// mrope interleaving without the section limit.
    MropeNoLimit,
    /// Image tokens at plain 1-D positions.
    ImagePositionsPlain,
    /// The clock advances by the number of image tokens.
    ClockByTokens,
    /// `rope_delta` taken as zero.
    RopeDeltaZero,
    /// No q/k norm.
    NoHeadNorm,
    /// RMSNorm without the `1 +` of Qwen3.5.
    NormWithoutOne,
    /// Query and gate as two halves instead of per head.
    GateAsHalves,
    /// The output gate left out.
    NoOutputGate,
    /// KV heads shared by interleaved query heads.
    KvHeadsInterleaved,
    /// DeltaNet key heads tiled instead of repeated.
    DeltaHeadsTiled,
    /// DeltaNet gate before its norm.
    DeltaGateBeforeNorm,
    /// Convolution taps reversed.
    ConvTapsReversed,
    /// Convolution tail not carried between pieces.
    ConvStateNotCarried,
    /// DeltaNet state not carried between pieces.
    DeltaStateNotCarried,
    /// `dt_bias` ignored.
    DeltaNoDtBias,
    /// Top-k weights not renormalised.
    TopKNotNormalised,
    /// Gate and up exchanged.
    GateUpExchanged,
    /// The shared expert's gate left out.
    SharedExpertUngated,
    /// The high half of a byte taken before the low one.
    NibblesSwapped,
    /// GPTQ's zero points without the one that its first format leaves out.
    ZeroPointOneOff,
    /// Scales `[groups, out]` read as `[out, groups]`.
    ScalesNotTurned,
    /// Norms that hold `1 + w` taken for `w`.
    NormShiftedTwice,
    /// Llama's query and key rows left in pairs.
    RowsNotUnpermuted,
    /// DeltaNet's tiled value heads taken for grouped ones.
    TiledHeadsIgnored,
    /// The frames of the patch embedding exchanged.
    FramesExchanged,
}

#[cfg(feature = "mutants")]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Mutant;

    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);

    /// Whether `mutant` is in force.
    pub fn active(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u32
    }

    /// Puts `mutant` in force, or none. Process-wide: tests that use it run one after the other.
    pub fn set(mutant: Option<Mutant>) {
        ACTIVE.store(mutant.map_or(u32::MAX, |m| m as u32), Ordering::Relaxed);
    }
}

#[cfg(feature = "mutants")]
pub use switch::{active, set};

/// Always `false` without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn active(_: Mutant) -> bool {
    false
}

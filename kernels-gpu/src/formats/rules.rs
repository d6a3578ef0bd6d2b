//! The choices a caller has, as the kernels receive them: one word.

/// How a power-of-two block scale is derived from the largest magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRounding {
    /// The smallest power of two at which nothing is clipped.
    Rceil,
    /// `2^(floor(log2 amax) - emax)`, as OCP MX 1.0 describes; the largest elements may clip.
    Floor,
    /// `amax` rounded to the precision of an element first, then as `Floor`.
    Even,
}

/// What happens to a block whose scale rounds to the smallest code although it is not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadBlocks {
    /// Elements stay finite and meaningful: see [`super::BlockFormat::block_scale`].
    Hardened,
    /// The arithmetic as it falls out, infinite reciprocals and NaN codes included.
    Strict,
}

/// What a NaN does to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanPolicy {
    /// The largest magnitude is taken over the other elements; a block of nothing but NaN has a
    /// NaN scale.
    Ignore,
    /// The whole block becomes NaN.
    Propagate,
}

/// Scale rounding, dead-block and NaN policy, packed into the word that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules(u32);

impl Rules {
    const FLOOR: u32 = 1;
    const EVEN: u32 = 2;
    const STRICT: u32 = 4;
    const PROPAGATE_NAN: u32 = 8;

    /// Packs a choice.
    ///
    /// ```
    /// use kernels_gpu::formats::{DeadBlocks, NanPolicy, Rules, ScaleRounding};
    /// let rules = Rules::new(ScaleRounding::Even, DeadBlocks::Strict, NanPolicy::Ignore);
    /// assert_eq!(Rules::from_bits(rules.bits()).scale_rounding(), ScaleRounding::Even);
    /// ```
    pub const fn new(rounding: ScaleRounding, dead_blocks: DeadBlocks, nan: NanPolicy) -> Self {
        let rounding = match rounding {
            ScaleRounding::Rceil => 0,
            ScaleRounding::Floor => Self::FLOOR,
            ScaleRounding::Even => Self::EVEN,
        };
        let dead_blocks = match dead_blocks {
            DeadBlocks::Hardened => 0,
            DeadBlocks::Strict => Self::STRICT,
        };
        let nan = match nan {
            NanPolicy::Ignore => 0,
            NanPolicy::Propagate => Self::PROPAGATE_NAN,
        };
        Self(rounding | dead_blocks | nan)
    }

    /// The word, as a kernel argument.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The reverse of [`bits`](Self::bits).
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The scale rounding.
    #[inline(always)]
    pub const fn scale_rounding(self) -> ScaleRounding {
        if self.0 & Self::FLOOR != 0 {
            ScaleRounding::Floor
        } else if self.0 & Self::EVEN != 0 {
            ScaleRounding::Even
        } else {
            ScaleRounding::Rceil
        }
    }

    /// Whether dead blocks are left as the arithmetic leaves them.
    #[inline(always)]
    pub const fn strict(self) -> bool {
        self.0 & Self::STRICT != 0
    }

    /// Whether a NaN makes its whole block NaN.
    #[inline(always)]
    pub const fn propagate_nan(self) -> bool {
        self.0 & Self::PROPAGATE_NAN != 0
    }
}

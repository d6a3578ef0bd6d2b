//! Rows to quantize: typed storage, and generators of values that are easy to get wrong.

use anyhow::Result;
use fastrand::Rng;
use half::{bf16, f16};
use tokenyard::options::{Format, InputType};
use tokenyard::{Device, DeviceBuffer, Input, reference};

/// Elements of one of the input types, on the host.
#[derive(Clone, Debug)]
pub enum Rows {
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE binary16.
    F16(Vec<f16>),
    /// IEEE binary32.
    F32(Vec<f32>),
}

impl Rows {
    /// Rounds `values` to the input type.
    pub fn rounded(input_type: InputType, values: impl IntoIterator<Item = f32>) -> Self {
        let values = values.into_iter();
        match input_type {
            InputType::Bf16 => Rows::Bf16(values.map(bf16::from_f32).collect()),
            InputType::F16 => Rows::F16(values.map(f16::from_f32).collect()),
            InputType::F32 => Rows::F32(values.collect()),
            other => unimplemented!("no rows of type {other}"),
        }
    }

    /// BF16 elements from their bit patterns.
    pub fn bf16_bits(patterns: impl IntoIterator<Item = u16>) -> Self {
        Rows::Bf16(patterns.into_iter().map(bf16::from_bits).collect())
    }

    /// FP16 elements from their bit patterns.
    pub fn f16_bits(patterns: impl IntoIterator<Item = u16>) -> Self {
        Rows::F16(patterns.into_iter().map(f16::from_bits).collect())
    }

    /// `count` elements whose bits are all equally likely: NaN, Inf and subnormals among them.
    pub fn random_bits(input_type: InputType, count: usize, random: &mut Rng) -> Self {
        match input_type {
            InputType::Bf16 => Self::bf16_bits((0..count).map(|_| random.u16(..))),
            InputType::F16 => Self::f16_bits((0..count).map(|_| random.u16(..))),
            InputType::F32 => {
                Rows::F32((0..count).map(|_| f32::from_bits(random.u32(..))).collect())
            }
            other => unimplemented!("no rows of type {other}"),
        }
    }

    /// The element type.
    pub fn input_type(&self) -> InputType {
        match self {
            Rows::Bf16(_) => InputType::Bf16,
            Rows::F16(_) => InputType::F16,
            Rows::F32(_) => InputType::F32,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Rows::Bf16(values) => values.len(),
            Rows::F16(values) => values.len(),
            Rows::F32(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An element, widened.
    pub fn value(&self, index: usize) -> f32 {
        match self {
            Rows::Bf16(values) => values[index].to_f32(),
            Rows::F16(values) => values[index].to_f32(),
            Rows::F32(values) => values[index],
        }
    }

    /// All elements, widened.
    pub fn widened(&self) -> Vec<f32> {
        (0..self.len()).map(|index| self.value(index)).collect()
    }

    /// All elements' bits, in the low bits of words.
    pub fn bits(&self) -> Vec<u32> {
        match self {
            Rows::Bf16(values) => values.iter().map(|it| it.to_bits().into()).collect(),
            Rows::F16(values) => values.iter().map(|it| it.to_bits().into()).collect(),
            Rows::F32(values) => values.iter().map(|it| it.to_bits()).collect(),
        }
    }

    /// An element's value and bits, as text.
    pub fn shown(&self, index: usize) -> String {
        let value = self.value(index);
        match self {
            Rows::Bf16(values) => format!("{value:e} ({:#06x})", values[index].to_bits()),
            Rows::F16(values) => format!("{value:e} ({:#06x})", values[index].to_bits()),
            Rows::F32(values) => format!("{value:e} ({:#010x})", values[index].to_bits()),
        }
    }

    /// As the reference takes them.
    pub fn reference(&self) -> reference::Input<'_> {
        match self {
            Rows::Bf16(values) => reference::Input::Bf16(bytemuck::cast_slice(values)),
            Rows::F16(values) => reference::Input::F16(bytemuck::cast_slice(values)),
            Rows::F32(values) => reference::Input::F32(values),
        }
    }

    /// Copies them to a device.
    ///
    /// # Errors
    /// As [`Device::upload`].
    pub fn upload(&self, device: &Device) -> Result<DeviceRows> {
        Ok(match self {
            Rows::Bf16(values) => DeviceRows::Bf16(device.upload(values)?),
            Rows::F16(values) => DeviceRows::F16(device.upload(values)?),
            Rows::F32(values) => DeviceRows::F32(device.upload(values)?),
        })
    }
}

/// [`Rows`] on a device.
#[derive(Debug)]
pub enum DeviceRows {
    /// bfloat16.
    Bf16(DeviceBuffer<bf16>),
    /// IEEE binary16.
    F16(DeviceBuffer<f16>),
    /// IEEE binary32.
    F32(DeviceBuffer<f32>),
}

impl DeviceRows {
    /// `count` elements of which every byte is `byte`.
    ///
    /// # Errors
    /// As [`Device::alloc_filled`].
    pub fn filled(device: &Device, input_type: InputType, count: usize, byte: u8) -> Result<Self> {
        Ok(match input_type {
            InputType::Bf16 => DeviceRows::Bf16(device.alloc_filled(count, byte)?),
            InputType::F16 => DeviceRows::F16(device.alloc_filled(count, byte)?),
            InputType::F32 => DeviceRows::F32(device.alloc_filled(count, byte)?),
            other => unimplemented!("no rows of type {other}"),
        })
    }

    /// Waits for the device, and sets every byte.
    ///
    /// # Errors
    /// As [`DeviceBuffer::fill`].
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        match self {
            DeviceRows::Bf16(buffer) => buffer.fill(byte)?,
            DeviceRows::F16(buffer) => buffer.fill(byte)?,
            DeviceRows::F32(buffer) => buffer.fill(byte)?,
        }
        Ok(())
    }

    /// Waits for the device, and copies them to the host.
    ///
    /// # Errors
    /// As [`DeviceBuffer::download`].
    pub fn download(&self) -> Result<Rows> {
        Ok(match self {
            DeviceRows::Bf16(buffer) => Rows::Bf16(buffer.download()?),
            DeviceRows::F16(buffer) => Rows::F16(buffer.download()?),
            DeviceRows::F32(buffer) => Rows::F32(buffer.download()?),
        })
    }

    /// As a quantizer takes them.
    pub fn input(&self) -> Input<'_> {
        match self {
            DeviceRows::Bf16(buffer) => buffer.into(),
            DeviceRows::F16(buffer) => buffer.into(),
            DeviceRows::F32(buffer) => buffer.into(),
        }
    }
}

/// Activations as they come: mostly moderate, some zeros of either sign, now and then an outlier.
pub fn activations(count: usize, random: &mut Rng) -> Vec<f32> {
    (0..count)
        .map(|_| {
            let value = (random.f32() * 2.0 - 1.0) * exp2(random.i32(-6..3));
            match random.u8(..100) {
                0..5 => 0.0,
                5..8 => -0.0,
                8 => value * 1000.0,
                _ => value,
            }
        })
        .collect()
}

/// Rows in which every block is one of the [`HAZARDS`], drawn at random.
pub fn hazards(format: Format, rows: usize, columns: usize, random: &mut Rng) -> Vec<f32> {
    let mut values = vec![0.0; rows * columns];
    if columns > 0 {
        for row in values.chunks_mut(columns) {
            for block in row.chunks_mut(format.block_size()) {
                let (_, fill) = HAZARDS[random.usize(..HAZARDS.len())];
                fill(format, block, random);
            }
        }
    }
    values
}

/// Activations in which about every fourth row has one block that is one of the [`HAZARDS`], so that
/// rows with nothing special in them lie beside others.
pub fn sprinkled(format: Format, rows: usize, columns: usize, random: &mut Rng) -> Vec<f32> {
    let mut values = activations(rows * columns, random);
    if columns > 0 {
        for row in values.chunks_mut(columns) {
            if random.u8(..4) == 0 {
                let blocks = columns.div_ceil(format.block_size());
                let first = random.usize(..blocks) * format.block_size();
                let end = columns.min(first + format.block_size());
                let (_, fill) = HAZARDS[random.usize(..HAZARDS.len())];
                fill(format, &mut row[first..end], random);
            }
        }
    }
    values
}

/// Overwrites a block, or what there is of it at the end of a row.
pub type Hazard = fn(Format, &mut [f32], &mut Rng);

/// Blocks that formats and policies treat specially, or that sit where rounding decides.
pub const HAZARDS: &[(&str, Hazard)] = &[
    ("moderate", |_, block, random| {
        let values = activations(block.len(), random);
        block.copy_from_slice(&values);
    }),
    ("zeros of either sign", |_, block, random| {
        block.fill_with(|| signed(0.0, random));
    }),
    ("one NaN among numbers", |_, block, random| {
        let values = activations(block.len(), random);
        block.copy_from_slice(&values);
        block[random.usize(..block.len())] = signed(f32::NAN, random);
    }),
    ("nothing but NaN", |_, block, random| {
        block.fill_with(|| signed(f32::NAN, random))
    }),
    // Eight elements are one thread's share: its part of amax is nothing but NaN.
    ("eight NaN, then numbers", |_, block, random| {
        let values = activations(block.len(), random);
        block.copy_from_slice(&values);
        let whole = block.len() / 8;
        let first = 8 * random.usize(..whole);
        block[first..first + 8].fill_with(|| signed(f32::NAN, random));
    }),
    ("NaN and zeros", |_, block, random| {
        block.fill(0.0);
        block[random.usize(..block.len())] = f32::NAN;
    }),
    ("an infinity", |_, block, random| {
        let values = activations(block.len(), random);
        block.copy_from_slice(&values);
        block[random.usize(..block.len())] = signed(f32::INFINITY, random);
    }),
    ("an infinity and a NaN", |_, block, random| {
        block.fill(1.0);
        block[random.usize(..block.len())] = f32::NAN;
        block[0] = signed(f32::INFINITY, random);
    }),
    ("subnormals and their neighbours", |_, block, random| {
        block.fill_with(|| {
            let value = (1.0 + random.f32()) * exp2(random.i32(-149..-110));
            signed(value, random)
        });
    }),
    ("one tiny value among zeros", |_, block, random| {
        block.fill_with(|| signed(0.0, random));
        let value = (1.0 + random.f32()) * exp2(random.i32(-149..-20));
        block[random.usize(..block.len())] = signed(value, random);
    }),
    ("near the largest FP32", |_, block, random| {
        block.fill_with(|| {
            let value = (1.0 + random.f32()) * exp2(random.i32(110..128));
            signed(value.min(f32::MAX), random)
        });
    }),
    // 2^-10 is where NVFP4's scale rounds to zero, 2^-127 the least scale of the MX formats.
    ("at the least scale", |format, block, random| {
        let least = match format {
            Format::Nvfp4 => exp2(-10),
            _ => exp2(-127),
        };
        let amax = nudged(format.element_max() * least, random);
        block.fill_with(|| amax * random.f32());
        block[random.usize(..block.len())] = signed(amax, random);
    }),
    // amax where rounding the scale up, down, or to the elements' precision changes its result.
    (
        "amax at a boundary of the scale",
        |format, block, random| {
            let significands = [1.0, 1.5, 1.75, 1.875, 1.9375, format.element_max()];
            let significand = significands[random.usize(..significands.len())];
            let amax = nudged(significand * exp2(random.i32(-12..12)), random);
            block.fill_with(|| signed(amax * random.f32(), random));
            block[random.usize(..block.len())] = signed(amax, random);
        },
    ),
    // The scale is a power of two here, so that elements sit on ties of the element format.
    ("elements on ties", |format, block, random| {
        let unit = exp2(random.i32(-8..8));
        let max = format.element_max();
        block.fill_with(|| {
            let exponent = random.i32(-4..9);
            let tie = (2.0 * random.u8(..16) as f32 + 1.0) * exp2(exponent - 5);
            signed(nudged(tie.min(max) * unit, random), random)
        });
        block[0] = max * unit;
    }),
    ("one value throughout", |_, block, random| {
        let value = signed((1.0 + random.f32()) * exp2(random.i32(-20..20)), random);
        block.fill(value);
    }),
    ("any bits", |_, block, random| {
        block.fill_with(|| f32::from_bits(random.u32(..)));
    }),
];

/// 2^exponent, subnormals included.
pub fn exp2(exponent: i32) -> f32 {
    2f64.powi(exponent) as f32
}

/// `value` or its negative.
fn signed(value: f32, random: &mut Rng) -> f32 {
    if random.bool() { value } else { -value }
}

/// `value`, or one of its neighbours: in FP32, or in BF16, which survives every input type.
fn nudged(value: f32, random: &mut Rng) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(match random.u8(..6) {
        0 => bits + 1,
        1 => bits - 1,
        2 => bits + (1 << 16),
        3 => bits - (1 << 16),
        _ => bits,
    })
}

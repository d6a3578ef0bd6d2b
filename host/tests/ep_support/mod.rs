//! A dispatch of a whole group, and the check of everything that it may and may not write.

#![allow(dead_code, reason = "each test binary uses its part")]

use fastrand::Rng;
use half::bf16;
use kernels_gpu::ep::slot_offset;
use kernels_gpu::scale_tile::offset_in_tensor;
use std::collections::BTreeSet;
use tokenyard::ep::{Batch, EpConfig, EpGroup, Received, SlotOrder, TokenFormat};
use tokenyard::options::{Format, QuantizeOptions};
use tokenyard::reference::formats::e4m3_encode;
use tokenyard::reference::quantize_block;
use tokenyard::{Device, DeviceBuffer, EmulatorOptions, Stream};

/// What buffers are filled with before a dispatch.
pub const PATTERN: u8 = 0xA5;

/// The factor of NVFP4 in all tests: not a power of two.
pub const INPUT_SCALE: f32 = 3.7;

/// The tokens and expert ids of one rank.
#[derive(Clone)]
pub struct Input {
    pub tokens: Vec<bf16>,
    pub ids: Vec<i32>,
}

/// An input as it lies on the device.
pub struct DeviceInput {
    tokens: DeviceBuffer<bf16>,
    ids: DeviceBuffer<i32>,
    scale: DeviceBuffer<f32>,
}

impl DeviceInput {
    pub fn upload(device: &Device, input: &Input) -> Self {
        Self {
            tokens: device.upload(&input.tokens).unwrap(),
            ids: device.upload(&input.ids).unwrap(),
            scale: device.upload(&[INPUT_SCALE]).unwrap(),
        }
    }

    pub fn batch(&self, config: &EpConfig) -> Batch<'_> {
        let batch = Batch::new(&self.tokens, &self.ids);
        if config.format() == TokenFormat::Nvfp4 {
            batch.input_scale(&self.scale)
        } else {
            batch
        }
    }
}

/// `tokens` rows of values of many magnitudes, each with distinct experts, some slots empty.
pub fn random_input(rng: &mut Rng, config: &EpConfig, tokens: usize, empty: f32) -> Input {
    let values = (0..tokens * config.hidden_size()).map(|_| {
        let exponent = rng.i32(-4..4) as f32;
        bf16::from_f32((rng.f32() - 0.5) * exponent.exp2())
    });
    let values = values.collect();
    let ids = (0..tokens).flat_map(|_| {
        let mut ids = rng.choose_multiple(
            0..config.experts() as i32,
            config.top_k().min(config.experts()),
        );
        ids.resize(config.top_k(), -1);
        rng.shuffle(&mut ids);
        for id in &mut ids {
            if rng.f32() < empty {
                *id = -1;
            }
        }
        ids
    });
    Input {
        tokens: values,
        ids: ids.collect(),
    }
}

/// An emulated device.
pub fn emulator(options: EmulatorOptions) -> Device {
    Device::emulator_with(options)
}

/// What a token becomes: payload and scale bytes, in column order.
pub fn encode(config: &EpConfig, token: &[bf16]) -> (Vec<u8>, Vec<u8>) {
    let values: Vec<f32> = token.iter().map(|value| value.to_f32()).collect();
    let (format, sf) = match config.format() {
        TokenFormat::Bf16 => {
            return (
                token.iter().flat_map(|v| v.to_le_bytes()).collect(),
                Vec::new(),
            );
        }
        TokenFormat::Fp8Block128 => {
            let (mut payload, mut scales) = (Vec::new(), Vec::new());
            for block in values.chunks(128) {
                let amax = block.iter().fold(0f32, |amax, value| amax.max(value.abs()));
                let scale = amax.max(1e-4) / 448.0;
                payload.extend(block.iter().map(|value| e4m3_encode(value / scale)));
                scales.extend(scale.to_le_bytes());
            }
            return (payload, scales);
        }
        TokenFormat::Nvfp4 => (Format::Nvfp4, INPUT_SCALE),
        TokenFormat::Mxfp4 => (Format::Mxfp4, 1.0),
        TokenFormat::Mxfp8 => (Format::Mxfp8, 1.0),
        other => panic!("this oracle does not know {other}"),
    };
    let options = QuantizeOptions {
        scale_rounding: config.scale_rounding().unwrap_or_default(),
        ..QuantizeOptions::default()
    };
    let (mut payload, mut scales) = (Vec::new(), Vec::new());
    for block in values.chunks(format.block_size()) {
        let mut codes = vec![0; block.len()];
        let mut scale = quantize_block(format, options, sf, block, &mut codes);
        let zero = block.iter().all(|value| *value == 0.0);
        if format == Format::Mxfp8 && (scale == 0xFF || (scale == 0 && !zero)) {
            scale = 0;
            codes.fill(0);
        }
        scales.push(scale);
        match format.element_bits() {
            4 => payload.extend(codes.chunks(2).map(|pair| pair[0] | pair[1] << 4)),
            _ => payload.extend(codes),
        }
    }
    (payload, scales)
}

/// Messages from each source for each local expert of `rank`: `(token, position)`, in token order.
pub fn expected_pairs(config: &EpConfig, inputs: &[Input], rank: usize) -> Vec<Vec<(i32, i32)>> {
    let (experts, sources) = (config.local_experts(), config.sources());
    let mut pairs = vec![Vec::new(); config.pairs()];
    for source in 0..sources {
        let ids = &inputs[if config.skip_a2a() { rank } else { source }].ids;
        for (token, ids) in ids.chunks(config.top_k()).enumerate() {
            for (position, &id) in ids.iter().enumerate() {
                let Some(expert) = (id as usize).checked_sub(rank * experts) else {
                    continue;
                };
                if id >= 0 && expert < experts && !ids[..position].contains(&id) {
                    pairs[expert * sources + source].push((token as i32, position as i32));
                }
            }
        }
    }
    pairs
}

/// The shared expert's tokens on `rank`: the first, and how many.
pub fn shared_rows(config: &EpConfig, tokens: usize, rank: usize) -> (usize, usize) {
    let world = config.allreduce_world_size();
    match (config.fused_shared_expert(), config.skip_a2a()) {
        (false, _) => (0, 0),
        (true, false) => (0, tokens),
        (true, true) => (
            rank * (tokens / world) + rank.min(tokens % world),
            (tokens + world - rank - 1) / world,
        ),
    }
}

/// Checks every byte of what `rank` received, which was [`PATTERN`] before.
pub fn check_received(config: &EpConfig, inputs: &[Input], rank: usize, received: &Received) {
    let pairs = expected_pairs(config, inputs, rank);
    let (hidden, top_k) = (config.hidden_size(), config.top_k());
    let tokens_of = |rank: usize| inputs[rank].ids.len() / top_k;
    let (first_shared, shared) = shared_rows(config, tokens_of(rank), rank);
    let multiple = if config.format() == TokenFormat::Fp8Block128 {
        4
    } else {
        1
    };

    // Rows and tiles of each group.
    let mut lengths: Vec<usize> = pairs
        .chunks(config.sources())
        .map(|pairs| pairs.iter().map(Vec::len).sum())
        .collect();
    if config.fused_shared_expert() {
        lengths.insert(0, shared);
    }
    let mut row_offsets = vec![0_usize];
    let mut first_tiles = vec![0_usize];
    for length in &lengths {
        row_offsets.push(row_offsets.last().unwrap() + length.next_multiple_of(multiple));
        first_tiles.push(first_tiles.last().unwrap() + length.div_ceil(128));
    }
    let found: Vec<usize> = received
        .row_offsets()
        .download()
        .unwrap()
        .iter()
        .map(|&o| o as usize)
        .collect();
    assert_eq!(found, row_offsets, "row offsets of rank {rank}");
    let identity: Vec<i32> = (0..config.groups() as i32).collect();
    assert_eq!(received.expert_ids().download().unwrap(), identity);
    if config.format() == TokenFormat::Nvfp4 {
        for (group, offset) in received
            .scales_offsets()
            .download()
            .unwrap()
            .iter()
            .enumerate()
        {
            let first = (row_offsets[group] as u32 / 128).wrapping_add(*offset);
            assert_eq!(
                first as usize, first_tiles[group],
                "first tile of group {group}"
            );
        }
    }

    // Where each row comes from: exact in token order, as a set in any other.
    let src_info = received.src_info().download().unwrap();
    let mut origins = vec![None; config.output_rows()];
    for (row, origin) in origins.iter_mut().take(shared).enumerate() {
        *origin = Some((rank, first_shared + row));
    }
    let mut ends = Vec::new();
    for (pair, expected) in pairs.iter().enumerate() {
        let (expert, source) = (pair / config.sources(), pair % config.sources());
        let group = expert + usize::from(config.fused_shared_expert());
        let start = if source == 0 {
            row_offsets[group]
        } else {
            *ends.last().unwrap()
        };
        let end = start + expected.len();
        ends.push(end);
        let found: Vec<(i32, i32)> = src_info[start..end].iter().map(|[t, k]| (*t, *k)).collect();
        if config.slot_order() == SlotOrder::Deterministic {
            assert_eq!(
                found, *expected,
                "rows from {source} for expert {expert} of {rank}"
            );
        } else {
            let set = |pairs: &[(i32, i32)]| pairs.iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(found.len(), expected.len());
            assert_eq!(
                set(&found),
                set(expected),
                "rows from {source} for expert {expert} of {rank}"
            );
        }
        let source = if config.skip_a2a() { rank } else { source };
        for (row, (token, _)) in (start..end).zip(found) {
            origins[row] = Some((source, token as usize));
        }
    }
    let expected: Vec<[u32; 2]> = ends
        .iter()
        .zip(&pairs)
        .map(|(end, pair)| [1024 + *end as u32, pair.len() as u32])
        .collect();
    assert_eq!(
        received.pairs().download().unwrap(),
        expected,
        "pairs of rank {rank}"
    );

    // Every byte of rows and scales.
    let payload_bytes = config.format().payload_bytes(hidden);
    let scales_per_row = config.format().scales_per_row(hidden);
    let mut tokens = vec![PATTERN; config.output_rows() * payload_bytes];
    let mut scales = vec![PATTERN; config.scale_bytes()];
    if config.format() == TokenFormat::Nvfp4 {
        let columns = scales_per_row.div_ceil(4);
        scales[..first_tiles.last().unwrap() * columns * 512].fill(0);
    }
    for (row, origin) in origins.iter().enumerate() {
        let Some((source, token)) = *origin else {
            continue;
        };
        let (payload, row_scales) =
            encode(config, &inputs[source].tokens[token * hidden..][..hidden]);
        tokens[row * payload_bytes..][..payload_bytes].copy_from_slice(&payload);
        let group = row_offsets
            .iter()
            .rposition(|&offset| offset <= row)
            .unwrap();
        // Of several groups that begin here, the last has the row.
        let in_group = row - row_offsets[group];
        match (config.format(), config.scale_preshuffle()) {
            (TokenFormat::Bf16, _) => {}
            (TokenFormat::Fp8Block128, _) => {
                for (block, scale) in row_scales.chunks(4).enumerate() {
                    scales[(block * config.scale_stride() + row) * 4..][..4].copy_from_slice(scale);
                }
            }
            (TokenFormat::Nvfp4, _) => {
                for (block, scale) in row_scales.iter().enumerate() {
                    let tile = first_tiles[group] + in_group / 128;
                    let columns = scales_per_row.div_ceil(4) as u32;
                    let row = in_group as u32 % 128;
                    scales[offset_in_tensor(tile as u32, row, block as u32, columns)] = *scale;
                }
            }
            (_, Some(slot_rows)) => {
                for (block, scale) in row_scales.iter().enumerate() {
                    let columns = scales_per_row as u32;
                    let (group, row) = (group as u32, in_group as u32);
                    scales[slot_offset(group, row, block as u32, columns, slot_rows as u32)] =
                        *scale;
                }
            }
            _ => scales[row * scales_per_row..][..scales_per_row].copy_from_slice(&row_scales),
        }
    }
    let found = received.tokens().download().unwrap();
    let wrong = found
        .iter()
        .zip(&tokens)
        .position(|(found, expected)| found != expected);
    assert_eq!(
        wrong, None,
        "first wrong byte of the tokens of rank {rank}, of {payload_bytes} a row"
    );
    let found = received.scales().download().unwrap();
    let wrong = found
        .iter()
        .zip(&scales)
        .position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "first wrong byte of the scales of rank {rank}");

    // Rows that are not routed have no source.
    for (row, info) in src_info.iter().enumerate() {
        if row < shared || origins[row].is_none() {
            assert_eq!(
                *info,
                [i32::from_ne_bytes([PATTERN; 4]); 2],
                "source of row {row}"
            );
        }
    }
}

/// Checks that counters and counts are as they were before the round.
pub fn check_idle(group: &EpGroup) {
    for rank in group.ranks() {
        assert!(
            rank.receive_counts()
                .unwrap()
                .iter()
                .all(|&count| count == u64::MAX)
        );
        let counters = rank.counters().unwrap();
        assert!(counters.reserved.iter().all(|&slots| slots == 0));
        assert_eq!((counters.sent, counters.ready), (0, 0));
    }
}

/// One round of all ranks, checked.
pub fn round(group: &mut EpGroup, stream: &Stream, inputs: &[Input], fused: bool) -> Vec<Received> {
    let config = group.config().clone();
    let device = group.device().clone();
    let device_inputs: Vec<_> = inputs
        .iter()
        .map(|input| DeviceInput::upload(&device, input))
        .collect();
    let batches: Vec<_> = device_inputs
        .iter()
        .map(|input| input.batch(&config))
        .collect();
    let mut received: Vec<_> = inputs
        .iter()
        .map(|_| group.allocate_received().unwrap())
        .collect();
    for received in &mut received {
        received.fill(PATTERN).unwrap();
    }
    if fused {
        let _ = group.dispatch(stream, &batches, &mut received).unwrap();
    } else {
        let mut pending = Vec::new();
        for (rank, batch) in group.ranks_mut().iter_mut().zip(&batches) {
            pending.push(rank.dispatch_async(stream, batch).unwrap());
        }
        for ((rank, pending), received) in
            group.ranks_mut().iter_mut().zip(pending).zip(&mut received)
        {
            let _ = rank.dispatch_wait(stream, pending, received).unwrap();
        }
    }
    group.check().unwrap();
    for (rank, received) in received.iter().enumerate() {
        check_received(&config, inputs, rank, received);
    }
    check_idle(group);
    received
}

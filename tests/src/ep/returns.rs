//! What experts made of the rows that ranks received, and what must become of it.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use half::bf16;
use tokenyard::Device;
use tokenyard::ep::{
    CombineOutput, CombineTarget, ExpertOutputs, RouterWeights, RowElement, TokenFormat,
};
use tokenyard::options::InputType;
use tokenyard::reference::ep::{
    CombineInput, ExpectedRows, Order, Weights, combine, combine_unweighted, returned_row,
};

use super::case::EpCase;
use crate::compare;
use crate::values::{DeviceRows, Rows, activations};

/// What goes into a combine beside the batches, one of each for every rank.
#[derive(Clone, Debug)]
pub struct Returns {
    /// `[output_rows, H]`: expert outputs.
    pub outputs: Vec<Rows>,
    /// `[T, K]`: router weights; without, rows come back as they are.
    pub weights: Option<Vec<Rows>>,
}

impl Returns {
    /// Expert outputs and router weights of the size that activations and weights have; those of some positions are
    /// 0 or negative. Rows that nobody sent are NaN.
    ///
    /// # Errors
    /// A case that has no combine.
    pub fn random(case: &EpCase, weights: Option<InputType>, random: &mut Rng) -> Result<Self> {
        let element = input_type(case)?;
        let inputs = case.inputs();
        let count = case.config()?.output_rows() * case.setup.hidden_size;
        let mut outputs = Vec::new();
        for rank in 0..case.setup.ranks {
            let rows = ExpectedRows::new(&case.setup, &inputs, rank)?.rows();
            let mut values = activations(rows * case.setup.hidden_size, random);
            values.resize(count, f32::NAN);
            outputs.push(Rows::rounded(element, values));
        }
        let weights = weights.map(|weight_type| {
            let ranks = case.ranks.iter();
            let ranks = ranks.map(|rank| {
                let weights = rank.topk_ids.iter().map(|_| match random.u8(..8) {
                    0 => 0.0,
                    1 => -random.f32(),
                    _ => random.f32(),
                });
                Rows::rounded(weight_type, weights)
            });
            ranks.collect()
        });
        Ok(Self { outputs, weights })
    }

    /// What experts make of the BF16 tokens of a case whose rows are in the order of tokens: `expert` is given the
    /// expert's number, none for the shared one, and a token. Rows that there are not are NaN.
    ///
    /// # Errors
    /// A case of another order or format, or without combine.
    pub fn of_experts(
        case: &EpCase,
        weights: Option<Vec<Rows>>,
        expert: impl Fn(Option<usize>, &[bf16]) -> Vec<f32>,
    ) -> Result<Self> {
        let setup = &case.setup;
        ensure!(
            case.order == Order::Tokens && setup.format == TokenFormat::Bf16,
            "{case}: which row is whose is not known beforehand"
        );
        let (inputs, element) = (case.inputs(), input_type(case)?);
        let hidden = setup.hidden_size;
        let token =
            |rank: usize, token: usize| &case.ranks[rank].tokens[token * hidden..][..hidden];
        let outputs = (0..setup.ranks).map(|rank| {
            let rows = ExpectedRows::new(setup, &inputs, rank)?;
            let mut outputs = vec![f32::NAN; case.config()?.output_rows() * hidden];
            let mut put = |row: usize, values: Vec<f32>| {
                outputs[row * hidden..][..hidden].copy_from_slice(&values);
            };
            for (row, number) in rows.shared_tokens.clone().enumerate() {
                put(row, expert(None, token(rank, number)));
            }
            for (index, cell) in rows.cells.iter().enumerate() {
                let source = rows.source_of_cell(index);
                let number = rank * setup.local_experts() + index / setup.sources();
                for (row, &(index, _)) in cell.rows.clone().zip(&cell.pairs) {
                    put(row, expert(Some(number), token(source, index)));
                }
            }
            Ok(Rows::rounded(element, outputs))
        });
        Ok(Self {
            outputs: outputs.collect::<Result<_>>()?,
            weights,
        })
    }

    /// Copies them to a device, and allocates outputs that are `byte` throughout.
    ///
    /// # Errors
    /// As the library's own.
    pub fn upload(&self, case: &EpCase, device: &Device, byte: u8) -> Result<DeviceReturns> {
        self.upload_ranks(case, device, byte, 0..case.ranks.len())
    }

    /// The same for some of the ranks: those of a member of a larger group.
    ///
    /// # Errors
    /// As the library's own.
    pub fn upload_ranks(
        &self,
        case: &EpCase,
        device: &Device,
        byte: u8,
        ranks: Range<usize>,
    ) -> Result<DeviceReturns> {
        let outputs = self.outputs[ranks.clone()].iter();
        let outputs = outputs.map(|rows| rows.upload(device));
        let weights = self.weights.as_ref().map(|all| &all[ranks.clone()]);
        let part = EpCase {
            ranks: case.ranks[ranks].to_vec(),
            ..case.clone()
        };
        DeviceReturns::new(
            &part,
            device,
            outputs.collect::<Result<_>>()?,
            weights,
            byte,
        )
    }

    /// Holds what ranks got back to the reference, over outputs that were full of `before`. Rows are where
    /// `sources` of each rank says; sums are bit for bit those of fused multiply-adds, except that a NaN is as good
    /// as another, and rows that come back as they are have every bit of theirs.
    ///
    /// # Errors
    /// The first element that differs.
    pub fn check(
        &self,
        case: &EpCase,
        sources: &[Vec<[i32; 2]>],
        before: u8,
        found: &[Rows],
    ) -> Result<()> {
        let ranks = case.setup.ranks;
        ensure!(found.len() == ranks, "outputs of {} ranks", found.len());
        self.check_ranks(case, sources, before, 0, found)
    }

    /// The same of some of the ranks, those from `first` on.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_ranks(
        &self,
        case: &EpCase,
        sources: &[Vec<[i32; 2]>],
        before: u8,
        first: usize,
        found: &[Rows],
    ) -> Result<()> {
        let (setup, element) = (&case.setup, element(case)?);
        let row_type = input_type(case)?;
        let inputs = case.inputs();
        let rows = (0..setup.ranks).map(|rank| ExpectedRows::new(setup, &inputs, rank));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let home = self.outputs.iter().zip(&rows);
        let home = home.map(|(outputs, rows)| came_home(case, outputs, rows));
        let home = home.collect::<Result<Vec<_>>>()?;
        let place = |rank: usize, index: usize, width: usize| {
            let (row, column) = (index / setup.hidden_size, index % setup.hidden_size);
            format!(
                "rank {rank}, token {}, position {}, element {column}",
                row / width,
                row % width
            )
        };
        let widened: Vec<_> = home.iter().map(Rows::widened).collect();
        let bits: Vec<_> = home.iter().map(Rows::bits).collect();
        for (me, found) in (first..).zip(found) {
            let own = &inputs[me];
            ensure!(found.input_type() == row_type, "{}", found.input_type());
            match &self.weights {
                Some(weights) => {
                    let weights = weights[me].widened();
                    let weights = Weights {
                        weights: &weights,
                        fused: true,
                    };
                    let ranks = of_ranks(&rows, sources, &widened);
                    let expected = combine(setup, me, own, &ranks, weights, element)?;
                    compare::floats("combined", &expected, &found.widened(), |index| {
                        place(me, index, 1)
                    })?;
                }
                None => {
                    let ranks = of_ranks(&rows, sources, &bits);
                    let pattern = u32::from_ne_bytes([before; 4]);
                    let pattern = pattern >> (32 - 8 * row_type.bytes());
                    let before = vec![pattern; found.len()];
                    let expected = combine_unweighted(setup, me, own, &ranks, &before)?;
                    compare::words("returned", &expected, &found.bits(), |index| {
                        place(me, index, setup.top_k)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// The type of expert outputs and of what comes back.
fn element(case: &EpCase) -> Result<RowElement> {
    let format = case.combine.context("the case has no combine")?;
    Ok(format.element())
}

/// The same, as rows have it.
fn input_type(case: &EpCase) -> Result<InputType> {
    Ok(match element(case)? {
        RowElement::Bf16 => InputType::Bf16,
        RowElement::F16 => InputType::F16,
        RowElement::F32 => InputType::F32,
    })
}

/// Expert outputs of the rows that there are, as they come home: quantized and dequantized, where the format says so,
/// but for those of the shared expert, which never leave.
fn came_home(case: &EpCase, outputs: &Rows, rows: &ExpectedRows) -> Result<Rows> {
    let hidden = case.setup.hidden_size;
    let count = rows.rows() * hidden;
    let format = case.combine.context("the case has no combine")?;
    let mut home = match outputs {
        Rows::Bf16(values) => values[..count].to_vec(),
        Rows::F16(values) => return Ok(Rows::F16(values[..count].to_vec())),
        Rows::F32(values) => return Ok(Rows::F32(values[..count].to_vec())),
    };
    let routed = home.chunks_exact_mut(hidden).skip(rows.shared_tokens.len());
    for row in routed {
        if let Some(values) = returned_row(format, bytemuck::cast_slice(row)) {
            for (element, value) in row.iter_mut().zip(values) {
                *element = bf16::from_f32(value);
                ensure!(element.to_f32() == value, "{value:e} takes more than BF16");
            }
        }
    }
    Ok(Rows::Bf16(home))
}

fn of_ranks<'a, T>(
    rows: &'a [ExpectedRows],
    sources: &'a [Vec<[i32; 2]>],
    outputs: &'a [Vec<T>],
) -> Vec<CombineInput<'a, T>> {
    let ranks = rows.iter().zip(sources).zip(outputs);
    let ranks = ranks.map(|((rows, src_info), outputs)| CombineInput {
        rows,
        src_info,
        outputs,
    });
    ranks.collect()
}

/// [`Returns`] on a device, and what comes back.
#[derive(Debug)]
pub struct DeviceReturns {
    /// Expert outputs.
    pub outputs: Vec<DeviceRows>,
    /// Router weights.
    pub weights: Option<Vec<DeviceRows>>,
    /// `[T, H]`, or without weights `[T, K, H]`.
    pub combined: Vec<DeviceRows>,
}

impl DeviceReturns {
    /// Outputs for expert outputs that are on the device already.
    ///
    /// # Errors
    /// As the library's own.
    pub fn new(
        case: &EpCase,
        device: &Device,
        outputs: Vec<DeviceRows>,
        weights: Option<&[Rows]>,
        byte: u8,
    ) -> Result<Self> {
        let element = input_type(case)?;
        let combined = case.ranks.iter().map(|rank| {
            let rows = match weights {
                Some(_) => rank.topk_ids.len() / case.setup.top_k,
                None => rank.topk_ids.len(),
            };
            DeviceRows::filled(device, element, rows * case.setup.hidden_size, byte)
        });
        let combined = combined.collect::<Result<_>>()?;
        let upload = |ranks: &[Rows]| -> Result<_> {
            let ranks = ranks.iter().map(|weights| weights.upload(device));
            ranks.collect()
        };
        Ok(Self {
            outputs,
            weights: weights.map(upload).transpose()?,
            combined,
        })
    }

    /// What combine takes of each rank: expert outputs, and where the result goes.
    pub fn operands(&mut self) -> (Vec<ExpertOutputs<'_>>, Vec<CombineTarget<'_>>) {
        let outputs = self.outputs.iter().map(expert_outputs).collect();
        let combined = self.combined.iter_mut().map(combine_output);
        let targets = match &self.weights {
            Some(weights) => {
                let weights = weights.iter().map(router_weights);
                let ranks = weights.zip(combined);
                ranks
                    .map(|(weights, out)| CombineTarget::weighted(weights, out))
                    .collect()
            }
            None => combined.map(CombineTarget::unweighted).collect(),
        };
        (outputs, targets)
    }

    /// What came back, of every rank.
    ///
    /// # Errors
    /// As the library's own.
    pub fn download(&self) -> Result<Vec<Rows>> {
        self.combined.iter().map(DeviceRows::download).collect()
    }
}

/// Rows as combine takes them.
pub fn expert_outputs(rows: &DeviceRows) -> ExpertOutputs<'_> {
    match rows {
        DeviceRows::Bf16(buffer) => buffer.into(),
        DeviceRows::F16(buffer) => buffer.into(),
        DeviceRows::F32(buffer) => buffer.into(),
    }
}

fn router_weights(weights: &DeviceRows) -> RouterWeights<'_> {
    match weights {
        DeviceRows::Bf16(buffer) => buffer.into(),
        DeviceRows::F16(buffer) => buffer.into(),
        DeviceRows::F32(buffer) => buffer.into(),
    }
}

fn combine_output(out: &mut DeviceRows) -> CombineOutput<'_> {
    match out {
        DeviceRows::Bf16(buffer) => buffer.into(),
        DeviceRows::F16(buffer) => buffer.into(),
        DeviceRows::F32(buffer) => buffer.into(),
    }
}

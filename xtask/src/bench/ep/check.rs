//! Holding a round to the reference.

use anyhow::{Context, Result, ensure};
use tokenyard::DeviceBuffer;
use tokenyard::ep::Received;
use tokenyard::reference::ep::{
    ExpectedRows, Order, QuantizedTokens, ReceivedBytes, Setup, payload_bytes,
};

use super::cases::{Case, RankInput};
use super::experts::Experts;
use super::member::Member;
use super::record::Checked;

/// Bytes of outputs of all ranks up to which every one is compared.
const COMPARED_BYTES: u64 = 1 << 30;

/// What a case must lead to.
pub struct Reference<'a> {
    case: &'a Case,
    setup: Setup,
    inputs: &'a [RankInput],
    /// The expert outputs that ranks send home.
    pub experts: Experts,
    /// Every rank's tokens, if every byte is compared, or those that are sampled.
    quantized: Vec<QuantizedTokens>,
    all_bytes: bool,
}

impl<'a> Reference<'a> {
    /// Of a case whose ranks have `inputs`.
    ///
    /// # Errors
    /// Extents that cannot be.
    pub fn new(case: &'a Case, inputs: &'a [RankInput]) -> Result<Self> {
        Self::with_limit(case, inputs, COMPARED_BYTES)
    }

    fn with_limit(case: &'a Case, inputs: &'a [RankInput], compared_bytes: u64) -> Result<Self> {
        let (setup, experts) = (case.setup(), Experts::new(case));
        let plan = case.config()?.memory_plan();
        let all_bytes = plan.received_bytes() * plan.ranks <= compared_bytes;
        let quantized = inputs.iter().map(|input| match all_bytes {
            true => QuantizedTokens::new(&setup, &input.reference()),
            false => QuantizedTokens::new(&setup, &experts.sampled_input(input).reference()),
        });
        Ok(Self {
            quantized: quantized.collect::<Result<_, _>>()?,
            case,
            setup,
            inputs,
            experts,
            all_bytes,
        })
    }

    /// How much of a dispatch is compared.
    pub fn dispatch_checked(&self) -> Checked {
        match self.all_bytes {
            true => Checked::All,
            false => Checked::Sample,
        }
    }

    /// How much of a combine is compared.
    pub fn combine_checked(&self) -> Checked {
        match self.experts.samples_all() {
            true => Checked::All,
            false => Checked::Sample,
        }
    }

    /// The rows that rank `rank` must receive.
    ///
    /// # Errors
    /// As the reference's own.
    pub fn rows(&self, rank: usize) -> Result<ExpectedRows> {
        let inputs: Vec<_> = self.inputs.iter().map(RankInput::reference).collect();
        Ok(ExpectedRows::new(&self.setup, &inputs, rank)?)
    }

    /// Holds what a rank received, over outputs of zeros, to the reference: every byte, or where groups begin, how
    /// many rows there are from everywhere, and the elements of sampled tokens. Waits for the device.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_received(&self, expected: &ExpectedRows, received: &Received) -> Result<()> {
        let row_offsets = received.row_offsets().download()?;
        ensure!(
            row_offsets == expected.row_offsets,
            "row offsets {row_offsets:?}, not {:?}",
            expected.row_offsets
        );
        let pairs = received.pairs().download()?;
        let handles = expected.handles.iter().map(|&(end, rows)| [end, rows]);
        ensure!(pairs == handles.collect::<Vec<_>>(), "rows of the pairs");
        if !self.all_bytes {
            return self.check_sampled_rows(expected, received);
        }
        let found = ReceivedBytes {
            tokens: received.tokens().download()?,
            scales: received.scales().download()?,
            row_offsets,
            expert_ids: received.expert_ids().download()?,
            src_info: received.src_info().download()?,
            scales_offsets: received.scales_offsets().download()?,
        };
        let before = ReceivedBytes {
            tokens: vec![0; found.tokens.len()],
            scales: vec![0; found.scales.len()],
            row_offsets: vec![0; found.row_offsets.len()],
            expert_ids: vec![0; found.expert_ids.len()],
            src_info: vec![[0; 2]; found.src_info.len()],
            scales_offsets: vec![0; found.scales_offsets.len()],
        };
        Ok(expected.check(&self.quantized, &before, &found, Order::Free)?)
    }

    fn check_sampled_rows(&self, expected: &ExpectedRows, received: &Received) -> Result<()> {
        let bytes = payload_bytes(self.setup.format, self.setup.hidden_size);
        let tokens = received.tokens();
        for sampled in self.sampled_rows(expected, &received.src_info().download()?)? {
            let Source {
                row, rank, token, ..
            } = sampled;
            let address = tokens.as_ptr().wrapping_add(row * bytes).cast_mut();
            // SAFETY: the row is one of the output, which is borrowed meanwhile and not written through this.
            let row = unsafe { DeviceBuffer::from_raw(tokens.device(), address, bytes)? };
            let index = self.experts.sampled().binary_search(&token);
            let index = index.ok().context("a token that is not sampled")?;
            ensure!(
                row.download()? == self.quantized[rank].payload(index),
                "row {}: elements are not those of token {token} of rank {rank}",
                sampled.row
            );
        }
        Ok(())
    }

    /// Where rows of sampled tokens are, and that each is there once.
    fn sampled_rows(&self, expected: &ExpectedRows, src_info: &[[i32; 2]]) -> Result<Vec<Source>> {
        let mut sampled = Vec::new();
        for (index, cell) in expected.cells.iter().enumerate() {
            let rank = expected.source_of_cell(index);
            let mut found: Vec<_> = cell
                .rows
                .clone()
                .map(|row| (src_info[row].map(|word| word as usize), row))
                .filter(|([token, _], _)| self.experts.samples(*token))
                .collect();
            found.sort_unstable();
            let wanted = cell.pairs.iter().copied();
            let wanted = wanted.filter(|&(token, _)| self.experts.samples(token));
            ensure!(
                found.iter().map(|&([token, k], _)| (token, k)).eq(wanted),
                "sources of the rows {:?} from rank {rank}",
                cell.rows
            );
            sampled.extend(found.into_iter().map(|([token, k], row)| Source {
                row,
                rank,
                token,
                k,
            }));
        }
        Ok(sampled)
    }

    /// Gives the rows of sampled tokens that rank `index` of a device has received their expert outputs.
    ///
    /// # Errors
    /// A device that fails, or rows that are not where they must be.
    pub fn write_outputs(
        &self,
        member: &mut Member,
        index: usize,
        expected: &ExpectedRows,
        src_info: &[[i32; 2]],
    ) -> Result<()> {
        for sampled in self.sampled_rows(expected, src_info)? {
            let output = self.experts.output(sampled.rank, sampled.token, sampled.k);
            member.write_outputs(index, sampled.row, output)?;
        }
        Ok(())
    }

    /// Holds the sampled combined tokens of rank `index` of a device to the reference, bit by bit.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_combined(&self, member: &Member, index: usize) -> Result<()> {
        let number = member.numbers()[index];
        let hidden = self.setup.hidden_size;
        let found = member.combined(index)?;
        let expected = self
            .experts
            .combined(self.case, number, &self.inputs[number])?;
        for (&token, expected) in self.experts.sampled().iter().zip(expected.chunks(hidden)) {
            let found = &found[token * hidden..][..hidden];
            let mut elements = found.iter().zip(expected);
            let wrong =
                elements.position(|(found, expected)| found.to_bits() != expected.to_bits());
            if let Some(element) = wrong {
                anyhow::bail!(
                    "combined token {token}, element {element} is {}, not {}",
                    found[element],
                    expected[element]
                );
            }
        }
        Ok(())
    }
}

/// A row and what it is of.
struct Source {
    row: usize,
    /// Whose token it is.
    rank: usize,
    token: usize,
    /// The expert's position among the token's.
    k: usize,
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Extents, cases};
    use super::super::measure::Bench;
    use super::*;
    use half::bf16;
    use tokenyard::Device;
    use tokenyard::ep::{EpGroup, TokenFormat};

    /// Checks a case, on ranks that have `inputs`, against what `reference` says.
    fn check(case: &Case, inputs: &[RankInput], reference: &Reference<'_>) -> Result<()> {
        let group = EpGroup::new(&Device::emulator(0), case.config()?)?;
        Bench::new(vec![group], case, inputs, reference)?.check()
    }

    /// More tokens than are all compared, with a limit that samples received rows too.
    #[test]
    fn samples_are_compared_and_differences_found() {
        let extents = Extents {
            hidden_size: 32,
            top_k: 2,
            experts: 8,
            ranks: 4,
        };
        for format in [TokenFormat::Bf16, TokenFormat::Mxfp4] {
            let case = cases(&[format], &[], &[300], extents).remove(0);
            let inputs = case.inputs().unwrap();
            let reference = Reference::with_limit(&case, &inputs, 0).unwrap();
            assert_eq!(reference.dispatch_checked(), Checked::Sample);
            assert_eq!(reference.combine_checked(), Checked::Sample);
            check(&case, &inputs, &reference).unwrap();

            let fails = |change: &dyn Fn(&mut RankInput), why: &str| {
                let mut inputs = case.inputs().unwrap();
                change(&mut inputs[3]);
                let error = check(&case, &inputs, &reference).unwrap_err();
                let error = format!("{error:#}");
                assert!(error.contains(why), "{error}");
            };
            let last = 299 * extents.hidden_size;
            fails(
                &|rank| rank.tokens[last] = bf16::from_f32(-77.0),
                "of rank 3",
            );
            fails(&|rank| rank.topk_ids.swap(0, 1), "from rank 3");
            fails(
                &|rank| rank.weights[598] *= 1.5,
                "combine, rank 3: combined token 299",
            );
        }
    }
}

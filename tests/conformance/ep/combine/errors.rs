//! What combine refuses: before anything is queued, with the numbers, and with the handle given back, so that the
//! round trip can be finished all the same.

use anyhow::{Result, ensure};
use fastrand::Rng;
use half::{bf16, f16};
use tokenyard::ep::{
    CombineFormat, CombineTarget, EpConfigError, EpError, EpGroup, Refused, RowElement, TokenFormat,
};
use tokenyard::options::InputType;
use tokenyard::reference::ep::Setup;
use tokenyard::{Device, DeviceError};
use tokenyard_tests::ep::{DeviceInput, EpCase, Returns, Traffic};
use tokenyard_tests::{Context, Suite};

use super::super::small;
use super::home;

pub fn register(suite: &mut Suite) {
    suite.both("ep::combine::errors::split", split);
    suite.both("ep::combine::errors::fused", fused);
    suite.both("ep::combine::errors::too_early", too_early);
    suite.both("ep::combine::errors::not_configured", not_configured);
    suite.both("ep::combine::errors::shared_expert", shared_expert);
    suite.host("ep::combine::errors::hidden_size", || {
        hidden_size().map(|()| None)
    });
}

/// Demands a refusal of this kind, and gives the handle back.
macro_rules! given_back {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {{
        let (error, handle) = match $result {
            Ok(_) => anyhow::bail!("{} was accepted", stringify!($result)),
            Err(Refused { error, handle }) => (*error, handle),
        };
        refused!(Err::<(), _>(error), $pattern $(if $guard)?);
        handle
    }};
}

fn setup() -> Setup {
    Setup {
        hidden_size: 64,
        ..small(TokenFormat::Bf16, 2)
    }
}

fn case() -> EpCase {
    home(
        EpCase::new(setup(), &[2, 3], Traffic::Uniform, 70),
        CombineFormat::Bf16,
    )
}

/// Sends and receives on all ranks, without looking at what comes.
fn dispatch<'r>(
    group: &mut EpGroup,
    stream: &tokenyard::Stream,
    inputs: &[DeviceInput],
    received: &'r mut [tokenyard::ep::Received],
) -> Result<Vec<tokenyard::ep::Dispatched<'r>>, EpError> {
    let mut pending = Vec::new();
    for (rank, input) in group.ranks_mut().iter_mut().zip(inputs) {
        pending.push(rank.dispatch_async(stream, &input.batch())?);
    }
    let ranks = group.ranks_mut().iter_mut().zip(pending).zip(received);
    ranks
        .map(|((rank, pending), received)| rank.dispatch_wait(stream, pending, received))
        .collect()
}

fn split(context: &Context) -> Result<()> {
    let (device, elsewhere) = (context.device(), Device::emulator(9));
    let case = case();
    let stream = device.create_stream()?;
    let foreign_stream = elsewhere.create_stream()?;
    let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(71))?;
    let mut group = EpGroup::new(&device, case.config()?)?;
    let inputs = DeviceInput::upload(&device, &case)?;
    let others = DeviceInput::upload(&device, &case)?;
    let mut received = [group.allocate_received()?, group.allocate_received()?];
    let mut on_device = returns.upload(&case, &device, 0)?;
    let elements = group.config().output_rows() * 64;
    let short = device.alloc::<bf16>(elements - 1)?;
    let halves = device.alloc::<f16>(elements)?;
    let foreign = elsewhere.alloc::<bf16>(elements)?;
    let weights = device.alloc::<f32>(2 * 3)?;
    let few_weights = device.alloc::<f32>(2 * 3 - 1)?;
    let foreign_weights = elsewhere.alloc::<f32>(2 * 3)?;
    let mut out = device.alloc::<bf16>(2 * 64)?;
    let mut floats = device.alloc::<f32>(2 * 64)?;
    let mut one_row = device.alloc::<bf16>(64)?;
    let mut foreign_out = elsewhere.alloc::<bf16>(2 * 64)?;

    let mut handles = dispatch(&mut group, &stream, &inputs, &mut received)?.into_iter();
    let (outputs, targets) = on_device.operands();
    let mut sent = Vec::new();
    for (rank, handle) in handles.by_ref().enumerate() {
        let handle = given_back!(
            handle.combine_async(&stream, &short),
            EpError::InputLength { found, expected, .. } if expected - found == 1
        );
        let handle = given_back!(
            handle.combine_async(&stream, &halves),
            EpError::CombineElement {
                found: RowElement::F16,
                expected: RowElement::Bf16,
                ..
            }
        );
        let handle = given_back!(
            handle.combine_async(&stream, &foreign),
            EpError::Device(DeviceError::WrongDevice { .. })
        );
        let handle = given_back!(
            handle.combine_async(&foreign_stream, outputs[rank]),
            EpError::Device(DeviceError::WrongDevice { .. })
        );
        ensure!(handle.rank() == rank);
        sent.push(
            handle
                .combine_async(&stream, outputs[rank])
                .map_err(EpError::from)?,
        );
    }

    let batch = inputs[0].batch();
    let mut sent = sent.into_iter();
    let handle = sent.next().expect("two ranks sent");
    let handle = given_back!(
        handle.wait(
            &stream,
            &others[0].batch(),
            CombineTarget::weighted(&weights, &mut out)
        ),
        EpError::OtherBatch { rank: 0 }
    );
    let handle = given_back!(
        handle.wait(
            &stream,
            &inputs[1].batch(),
            CombineTarget::weighted(&weights, &mut out)
        ),
        EpError::OtherBatch { rank: 0 }
    );
    let handle = given_back!(
        handle.wait(
            &stream,
            &batch,
            CombineTarget::weighted(&few_weights, &mut out)
        ),
        EpError::InputLength {
            rank: 0,
            found: 5,
            expected: 6,
            ..
        }
    );
    let handle = given_back!(
        handle.wait(
            &stream,
            &batch,
            CombineTarget::weighted(&foreign_weights, &mut out)
        ),
        EpError::Device(DeviceError::WrongDevice { .. })
    );
    let handle = given_back!(
        handle.wait(
            &stream,
            &batch,
            CombineTarget::weighted(&weights, &mut floats)
        ),
        EpError::CombineElement {
            rank: 0,
            found: RowElement::F32,
            ..
        }
    );
    let handle = given_back!(
        handle.wait(
            &stream,
            &batch,
            CombineTarget::weighted(&weights, &mut one_row)
        ),
        EpError::InputLength {
            found: 64,
            expected: 128,
            ..
        }
    );
    // Unweighted, there is a row for each of the three positions.
    let handle = given_back!(
        handle.wait(&stream, &batch, CombineTarget::unweighted(&mut out)),
        EpError::InputLength {
            found: 128,
            expected: 384,
            ..
        }
    );
    let handle = given_back!(
        handle.wait(
            &stream,
            &batch,
            CombineTarget::weighted(&weights, &mut foreign_out)
        ),
        EpError::Device(DeviceError::WrongDevice { .. })
    );
    let handle = given_back!(
        handle.wait(
            &foreign_stream,
            &batch,
            CombineTarget::weighted(&weights, &mut out)
        ),
        EpError::Device(DeviceError::WrongDevice { .. })
    );

    // And the round trip is finished as if nothing had been.
    let handles = std::iter::once(handle).chain(sent);
    for ((handle, target), input) in handles.zip(targets).zip(&inputs) {
        handle
            .wait(&stream, &input.batch(), target)
            .map_err(EpError::from)?;
    }
    group.check()?;
    let sources = received.iter().map(|it| it.src_info().download());
    let sources: Vec<_> = sources.collect::<Result<_, _>>()?;
    returns.check(&case, &sources, 0, &on_device.download()?)
}

fn fused(context: &Context) -> Result<()> {
    let device = context.device();
    let case = case();
    let stream = device.create_stream()?;
    let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(72))?;
    let mut group = EpGroup::new(&device, case.config()?)?;
    let inputs = DeviceInput::upload(&device, &case)?;
    let others = DeviceInput::upload(&device, &case)?;
    let mut received = [group.allocate_received()?, group.allocate_received()?];
    let mut on_device = returns.upload(&case, &device, 0)?;
    let mut spare = returns.upload(&case, &device, 0)?;
    let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
    let handle = group.dispatch(&stream, &batches, &mut received)?;
    let (outputs, _) = spare.operands();
    let handle = given_back!(
        handle.combine(&stream, &outputs, &batches, Vec::new()),
        EpError::CombineCount {
            ranks: 2,
            outputs: 2,
            batches: 2,
            targets: 0
        }
    );
    let (outputs, targets) = spare.operands();
    let handle = given_back!(
        handle.combine(&stream, &outputs[..1], &batches, targets),
        EpError::CombineCount { outputs: 1, .. }
    );
    let (outputs, targets) = spare.operands();
    let mixed = [batches[0], others[1].batch()];
    let handle = given_back!(
        handle.combine(&stream, &outputs, &mixed, targets),
        EpError::OtherBatch { rank: 1 }
    );
    let (outputs, targets) = spare.operands();
    let short = device.alloc::<bf16>(64)?;
    let handle = given_back!(
        handle.combine(&stream, &[outputs[0], (&short).into()], &batches, targets),
        EpError::InputLength {
            rank: 1,
            found: 64,
            ..
        }
    );
    let (outputs, targets) = on_device.operands();
    handle
        .combine(&stream, &outputs, &batches, targets)
        .map_err(EpError::from)?;
    group.check()?;
    let sources = received.iter().map(|it| it.src_info().download());
    let sources: Vec<_> = sources.collect::<Result<_, _>>()?;
    returns.check(&case, &sources, 0, &on_device.download()?)
}

/// A rank that is a combine ahead would overwrite what another has not added up; and all ranks combine the same round.
fn too_early(context: &Context) -> Result<()> {
    let device = context.device();
    let case = case();
    let stream = device.create_stream()?;
    let returns = Returns::random(&case, Some(InputType::F32), &mut Rng::with_seed(73))?;
    let mut group = EpGroup::new(&device, case.config()?)?;
    let inputs = DeviceInput::upload(&device, &case)?;
    let mut on_device = returns.upload(&case, &device, 0)?;
    let mut again = returns.upload(&case, &device, 0)?;
    let mut received = [group.allocate_received()?, group.allocate_received()?];
    let mut received_again = [group.allocate_received()?, group.allocate_received()?];

    let mut first = dispatch(&mut group, &stream, &inputs, &mut received)?.into_iter();
    let (outputs, targets) = on_device.operands();
    let mut targets = targets.into_iter();
    let mut sent = Vec::new();
    for (handle, outputs) in first.by_ref().zip(outputs) {
        sent.push(
            handle
                .combine_async(&stream, outputs)
                .map_err(EpError::from)?,
        );
    }
    let mut sent = sent.into_iter();
    let mut wait = |rank: usize| -> Result<()> {
        if let (Some(handle), Some(target)) = (sent.next(), targets.next()) {
            handle
                .wait(&stream, &inputs[rank].batch(), target)
                .map_err(EpError::from)?;
        }
        Ok(())
    };
    wait(0)?;
    let second = dispatch(&mut group, &stream, &inputs, &mut received_again)?;
    let (outputs, targets_again) = again.operands();
    let mut second = second.into_iter();
    let handle = second.next().expect("two ranks received");
    let handle = given_back!(
        handle.combine_async(&stream, outputs[0]),
        EpError::CombineOrder {
            rank: 0,
            other: 1,
            behind: 0,
            ..
        }
    );
    wait(1)?;
    let handles = std::iter::once(handle).chain(second);
    let mut sent = Vec::new();
    for (handle, outputs) in handles.zip(outputs) {
        sent.push(
            handle
                .combine_async(&stream, outputs)
                .map_err(EpError::from)?,
        );
    }
    for ((handle, target), input) in sent.into_iter().zip(targets_again).zip(&inputs) {
        handle
            .wait(&stream, &input.batch(), target)
            .map_err(EpError::from)?;
    }
    group.check()?;
    for (received, returned) in [(&received, &on_device), (&received_again, &again)] {
        let sources = received.iter().map(|it| it.src_info().download());
        let sources: Vec<_> = sources.collect::<Result<_, _>>()?;
        returns.check(&case, &sources, 0, &returned.download()?)?;
    }
    Ok(())
}

fn not_configured(context: &Context) -> Result<()> {
    let device = context.device();
    let case = EpCase::new(setup(), &[2, 3], Traffic::Uniform, 74);
    let stream = device.create_stream()?;
    let mut group = EpGroup::new(&device, case.config()?)?;
    let inputs = DeviceInput::upload(&device, &case)?;
    let mut received = [group.allocate_received()?, group.allocate_received()?];
    let outputs = device.alloc::<bf16>(group.config().output_rows() * 64)?;
    ensure!(group.config().combine().is_none());
    for handle in dispatch(&mut group, &stream, &inputs, &mut received)? {
        let handle = given_back!(
            handle.combine_async(&stream, &outputs),
            EpError::CombineNotConfigured
        );
        // What was received is still there.
        handle.received().row_offsets().download()?;
    }
    Ok(group.check()?)
}

fn shared_expert(context: &Context) -> Result<()> {
    let device = context.device();
    let setup = Setup {
        fused_shared_expert: true,
        ..setup()
    };
    let case = EpCase::new(setup, &[2, 3], Traffic::Uniform, 75);
    let case = home(case, CombineFormat::Bf16);
    let stream = device.create_stream()?;
    let mut group = EpGroup::new(&device, case.config()?)?;
    let inputs = DeviceInput::upload(&device, &case)?;
    let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
    let mut received = [group.allocate_received()?, group.allocate_received()?];
    let unweighted = Returns::random(&case, None, &mut Rng::with_seed(76))?;
    let mut unweighted = unweighted.upload(&case, &device, 0)?;
    let handle = group.dispatch(&stream, &batches, &mut received)?;
    let (outputs, targets) = unweighted.operands();
    let _handle = given_back!(
        handle.combine(&stream, &outputs, &batches, targets),
        EpError::SharedExpertNeedsWeights { .. }
    );
    Ok(group.check()?)
}

/// Rows of 40 elements travel as they are, and have no blocks of 32.
fn hidden_size() -> Result<()> {
    let setup = Setup {
        hidden_size: 40,
        ..setup()
    };
    let case = EpCase::new(setup, &[2, 3], Traffic::Uniform, 77);
    for format in CombineFormat::ALL {
        let multiple = format.hidden_multiple();
        let config = home(case.clone(), format).config();
        if multiple == 8 {
            config?;
        } else {
            refused!(
                config,
                EpConfigError::CombineHiddenSize {
                    hidden_size: 40,
                    multiple: 32,
                    ..
                }
            );
        }
    }
    Ok(())
}

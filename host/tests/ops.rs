//! Operations by name: their lists, shape inference, and that every refusal names what is at fault.

use tokenyard::ep::{EpConfig, EpGroup, TokenFormat};
use tokenyard::ops::{
    self, Attributes, DType, EpSession, OpContext, OpError, Operation, TensorType, TensorView,
};
use tokenyard::{Device, DeviceBuffer};

const QUANTIZE: &str = "grouped.quantize.dynamic.block.scaled";

#[test]
fn names_and_lists_are_those_of_the_definition() {
    let names: Vec<_> = ops::operations().map(Operation::name).collect();
    for family in ["ep.dispatch", "ep.dispatch_async", "ep.dispatch_wait"] {
        for suffix in ["", ".fp8", ".nvfp4", ".mxfp4", ".mxfp8"] {
            assert!(
                names.contains(&format!("{family}{suffix}").as_str()),
                "{family}{suffix}"
            );
        }
    }
    assert_eq!(names.len(), 19);
    let list = |name: &str| -> Vec<&str> {
        let operands = ops::find(name).unwrap().operands().iter();
        operands.map(|operand| operand.name).collect()
    };
    assert_eq!(
        list("ep.dispatch.mxfp4"),
        [
            "output_tokens",
            "output_scales",
            "row_offsets",
            "expert_ids",
            "src_info",
            "atomic_counters",
            "input_tokens",
            "topk_ids",
            "send_ptrs",
            "recv_ptrs",
            "recv_count_ptrs",
        ]
    );
    assert!(!list("ep.dispatch").contains(&"output_scales"));
    assert_eq!(
        list("ep.dispatch.nvfp4")[2..4],
        ["row_offsets", "scales_offsets"]
    );
    assert_eq!(list("ep.dispatch.nvfp4").last(), Some(&"input_scales"));
    assert!(
        list("ep.dispatch_async.mxfp4")
            .iter()
            .all(|name| !name.starts_with("output"))
    );
    assert!(!list("ep.dispatch_wait.mxfp4").contains(&"input_tokens"));
    assert_eq!(
        list("ep.combine"),
        [
            "output_tokens",
            "input_tokens",
            "src_info",
            "atomic_counters",
            "send_ptrs",
            "recv_ptrs",
            "recv_count_ptrs",
            "router_weights",
            "topk_ids",
        ]
    );
    assert_eq!(list("ep.combine_async"), list("ep.combine")[1..7]);
    assert!(
        list("ep.combine_wait")
            .iter()
            .eq(list("ep.combine").iter().filter(|&&it| it != "send_ptrs"))
    );
    assert_eq!(
        list(QUANTIZE),
        [
            "output",
            "scales",
            "input",
            "row_offsets",
            "scales_offsets",
            "expert_ids",
            "sf_tensor"
        ]
    );
    let attributes = ops::find("ep.dispatch.mxfp4").unwrap().attributes().iter();
    let attributes: Vec<_> = attributes.map(|attribute| attribute.name).collect();
    assert_eq!(
        attributes,
        [
            "input_dtype",
            "dispatch_dtype",
            "dispatch_scale_dtype",
            "hidden_size",
            "top_k",
            "n_experts",
            "max_token_per_rank",
            "n_gpus_per_node",
            "n_nodes",
            "fused_shared_expert",
            "skip_a2a",
            "allreduce_world_size",
            "target",
            "fuse_a_scale_preshuffle",
            "max_padded_M",
            "MX_FORMAT",
        ]
    );
    for name in ["ep.combine", "ep.combine_async", "ep.combine_wait"] {
        let combine = ops::find(name).unwrap().attributes().iter();
        assert!(
            combine
                .map(|it| it.name)
                .eq(attributes[..13].iter().copied()),
            "{name}"
        );
    }
    let error = ops::find("ep.dispatch.mxfp5").unwrap_err().to_string();
    assert!(
        error.contains("mxfp5") && error.contains("ep.dispatch.mxfp4"),
        "{error}"
    );
}

/// Four experts on two ranks, K = 2, H = 256, at most three tokens.
fn attributes() -> Attributes {
    Attributes::new()
        .with("input_dtype", DType::Bf16)
        .with("dispatch_dtype", DType::U8)
        .with("dispatch_scale_dtype", DType::Float8E8m0)
        .with("hidden_size", 256)
        .with("top_k", 2)
        .with("n_experts", 4)
        .with("max_token_per_rank", 3)
        .with("n_gpus_per_node", 2)
        .with("n_nodes", 1)
        .with("target", "gpu")
}

fn inputs() -> Vec<TensorType> {
    vec![
        TensorType::new(DType::I32, [8]),
        TensorType::new(DType::Bf16, [2, 256]),
        TensorType::new(DType::I32, [2, 2]),
        TensorType::new(DType::U64, [2]),
        TensorType::new(DType::U64, [2]),
        TensorType::new(DType::U64, [2]),
    ]
}

#[test]
fn outputs_follow_from_attributes() {
    let infer = |name: &str, attributes: &Attributes, inputs: &[TensorType]| -> Vec<String> {
        let outputs = ops::find(name).unwrap().infer(attributes, inputs).unwrap();
        outputs.iter().map(TensorType::to_string).collect()
    };
    // Rows: 3 * min(4, 2 * 2) = 12.
    let plain = [
        "uint8 [12, 128]",
        "float8_e8m0fnu [12, 8]",
        "uint32 [3]",
        "int32 [2]",
        "int32 [12, 2]",
    ];
    assert_eq!(infer("ep.dispatch.mxfp4", &attributes(), &inputs()), plain);
    let shared = attributes()
        .with("fused_shared_expert", true)
        .with("fuse_a_scale_preshuffle", true)
        .with("max_padded_M", 32);
    assert_eq!(
        infer("ep.dispatch.mxfp4", &shared, &inputs()),
        [
            "uint8 [15, 128]",
            "float8_e8m0fnu [96, 8]",
            "uint32 [4]",
            "int32 [3]",
            "int32 [15, 2]",
        ]
    );
    // In skip mode the number of experts is a rank's: 3 * min(4, 2) rows, and 8 handle words all the same.
    let skip = attributes()
        .with("skip_a2a", true)
        .with("n_gpus_per_node", 1);
    let mut one_table = inputs();
    for table in &mut one_table[3..] {
        table.shape = vec![1];
    }
    assert_eq!(
        infer("ep.dispatch.mxfp4", &skip, &one_table)[0],
        "uint8 [6, 128]"
    );
    // Blockwise FP8: three rows of padding for each group, scales transposed.
    let fp8 = attributes()
        .with("dispatch_dtype", DType::Float8E4m3)
        .with("dispatch_scale_dtype", DType::F32);
    let outputs = infer("ep.dispatch.fp8", &fp8, &inputs());
    assert_eq!(outputs[..2], ["float8_e4m3fn [18, 256]", "float32 [2, 20]"]);
    let outputs = infer(
        "ep.dispatch_wait.mxfp4",
        &attributes(),
        &[
            inputs()[0].clone(),
            inputs()[4].clone(),
            inputs()[5].clone(),
        ],
    );
    assert_eq!(outputs, plain);
    let none = ops::find("ep.dispatch_async.mxfp4").unwrap();
    assert!(none.infer(&attributes(), &inputs()).unwrap().is_empty());
}

#[test]
fn wrong_attributes_are_named() {
    let refuse = |attributes: Attributes| {
        let operation = ops::find("ep.dispatch.mxfp4").unwrap();
        operation
            .infer(&attributes, &inputs())
            .unwrap_err()
            .to_string()
    };
    for (name, text) in [
        (
            "input_dtype",
            refuse(attributes().with("input_dtype", DType::F32)),
        ),
        (
            "dispatch_dtype",
            refuse(attributes().with("dispatch_dtype", DType::Float8E4m3)),
        ),
        (
            "dispatch_scale_dtype",
            refuse(attributes().with("dispatch_scale_dtype", DType::F32)),
        ),
        ("hidden_size", refuse(attributes().with("hidden_size", 100))),
        ("top_k", refuse(attributes().with("top_k", 33))),
        ("top_k", refuse(attributes().with("top_k", "two"))),
        ("target", refuse(attributes().with("target", "cpu"))),
        ("MX_FORMAT", refuse(attributes().with("MX_FORMAT", "mxfp6"))),
        (
            "n_gpus_per_node",
            refuse(attributes().with("skip_a2a", true)),
        ),
        ("n_hops", refuse(attributes().with("n_hops", 3))),
    ] {
        assert!(
            text.contains("ep.dispatch.mxfp4") && text.contains(name),
            "{name}: {text}"
        );
    }
    let missing = Attributes::new().with("input_dtype", DType::Bf16);
    assert!(refuse(missing).contains("needs the attribute `dispatch_dtype`"));
    let experts = refuse(attributes().with("n_experts", 5));
    assert!(experts.contains("5 experts"), "{experts}");
    // The split operations have no shared expert.
    let split = ops::find("ep.dispatch_async.mxfp4").unwrap();
    let error = split.infer(&attributes().with("fused_shared_expert", true), &inputs());
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("fused_shared_expert")
    );
    // A format by the wrong pair of types.
    let quantize = ops::find(QUANTIZE).unwrap();
    let pair = Attributes::new()
        .with("input_dtype", DType::Bf16)
        .with("output_dtype", DType::Float8E4m3)
        .with("scales_dtype", DType::Float8E4m3)
        .with("target", "gpu");
    let types = [
        TensorType::new(DType::Bf16, [1, 8]),
        TensorType::new(DType::U32, [2]),
        TensorType::new(DType::U32, [1]),
        TensorType::new(DType::I32, [1]),
        TensorType::new(DType::F32, [1]),
    ];
    let error = quantize.infer(&pair, &types).unwrap_err().to_string();
    assert!(
        error.contains("scales_dtype") && error.contains("float8_e8m0fnu"),
        "{error}"
    );
}

/// Under `skip_a2a` only `allreduce_world_size` says how many ranks there are: without it, one.
#[test]
fn a_missing_world_size_is_named() {
    let skip = attributes()
        .with("skip_a2a", true)
        .with("n_experts", 2)
        .with("n_gpus_per_node", 1);
    let mut types = inputs();
    types[0] = TensorType::new(DType::I32, [4]);
    let operation = ops::find("ep.dispatch_async.mxfp4").unwrap();
    let two_tables = operation.infer(&skip, &types).unwrap_err().to_string();
    assert!(
        two_tables.contains("allreduce_world_size") && two_tables.contains("2 ranks"),
        "{two_tables}"
    );

    // Tables of one rank, and a group of two.
    let device = Device::emulator(0);
    let stream = device.create_stream().unwrap();
    let config = EpConfig::builder(TokenFormat::Mxfp4).hidden_size(256);
    let config = config.top_k(2).experts(4).ranks(2).skip_a2a(true);
    let config = config.max_tokens_per_rank(3).build().unwrap();
    let mut session = EpSession::new(EpGroup::new(&device, config).unwrap());
    let tables = session.pointer_tables();
    let mut counters: DeviceBuffer<i32> = device.alloc_filled(4, 0).unwrap();
    let tokens: DeviceBuffer<half::bf16> = device.alloc_filled(512, 0).unwrap();
    let ids: DeviceBuffer<i32> = device.alloc_filled(4, 0).unwrap();
    let mut call = |attributes: &Attributes, entries: usize| {
        let mut context = OpContext::with_ranks(&stream, &mut session, 0).unwrap();
        let mut tensors = [
            TensorView::output(&mut counters, [4]).unwrap(),
            TensorView::input(&tokens, [2, 256]).unwrap(),
            TensorView::input(&ids, [2, 2]).unwrap(),
            TensorView::host(&tables.send[..entries]),
            TensorView::host(&tables.recv[..entries]),
            TensorView::host(&tables.recv_count[..entries]),
        ];
        let result = operation.execute(&mut context, attributes, &mut tensors);
        result.map_err(|error| error.to_string())
    };
    let one_table = call(&skip, 1).unwrap_err();
    assert!(
        one_table.contains("allreduce_world_size") && one_table.contains("2 ranks"),
        "{one_table}"
    );
    call(&skip.clone().with("allreduce_world_size", 2), 2).unwrap();
}

#[test]
fn wrong_tensors_are_named() {
    let operation = ops::find("ep.dispatch.mxfp4").unwrap();
    let refuse = |index: usize, tensor: TensorType| {
        let mut inputs = inputs();
        inputs[index] = tensor;
        operation
            .infer(&attributes(), &inputs)
            .unwrap_err()
            .to_string()
    };
    for (index, name, tensor) in [
        (0, "atomic_counters", TensorType::new(DType::U32, [8])),
        (0, "atomic_counters", TensorType::new(DType::I32, [7])),
        (1, "input_tokens", TensorType::new(DType::F32, [2, 256])),
        (1, "input_tokens", TensorType::new(DType::Bf16, [2, 255])),
        (1, "input_tokens", TensorType::new(DType::Bf16, [512])),
        (1, "input_tokens", TensorType::new(DType::Bf16, [4, 256])),
        (2, "topk_ids", TensorType::new(DType::I32, [1, 2])),
        (2, "topk_ids", TensorType::new(DType::I32, [2, 3])),
        (3, "send_ptrs", TensorType::new(DType::U64, [3])),
        (5, "recv_count_ptrs", TensorType::new(DType::U32, [2])),
    ] {
        let text = refuse(index, tensor.clone());
        assert!(text.contains(&format!("`{name}`")), "{tensor}: {text}");
    }
    let error = operation.infer(&attributes(), &inputs()[1..]).unwrap_err();
    assert!(
        matches!(
            error,
            OpError::OperandCount {
                expected: 6,
                found: 5,
                ..
            }
        ),
        "{error}"
    );
}

/// What only shows when tensors are there: places, writability, addresses, and the group.
#[test]
fn wrong_memory_is_named() {
    let device = Device::emulator(0);
    let stream = device.create_stream().unwrap();
    let config = |experts: usize| {
        let builder = EpConfig::builder(TokenFormat::Mxfp4)
            .hidden_size(256)
            .top_k(2);
        builder
            .experts(experts)
            .max_tokens_per_rank(3)
            .ranks(2)
            .build()
            .unwrap()
    };
    let mut session = EpSession::new(EpGroup::new(&device, config(4)).unwrap());
    let tables = session.pointer_tables();
    let operation = ops::find("ep.dispatch_async.mxfp4").unwrap();
    let mut counters: DeviceBuffer<i32> = device.alloc_filled(8, 0).unwrap();
    let tokens: DeviceBuffer<half::bf16> = device.alloc_filled(512, 0).unwrap();
    let ids: DeviceBuffer<i32> = device.alloc_filled(4, 0).unwrap();
    let elsewhere: DeviceBuffer<i32> = Device::emulator(1).alloc_filled(4, 0).unwrap();
    let mut call = |session: Option<&mut EpSession>,
                    ids: &DeviceBuffer<i32>,
                    writable: bool,
                    recv: TensorView<'_>| {
        let context = match session {
            Some(session) => OpContext::with_ranks(&stream, session, 1),
            None => Ok(OpContext::new(&stream)),
        };
        let counters = match writable {
            true => TensorView::output(&mut counters, [8]),
            false => TensorView::input(&counters, [8]),
        };
        let result = operation.execute(
            &mut context.unwrap(),
            &attributes(),
            &mut [
                counters.unwrap(),
                TensorView::input(&tokens, [2, 256]).unwrap(),
                TensorView::input(ids, [2, 2]).unwrap(),
                TensorView::host(&tables.send),
                recv,
                TensorView::host(&tables.recv_count),
            ],
        );
        result.map_err(|error| error.to_string())
    };
    let recv = || TensorView::host(&tables.recv);
    let says = |result: Result<(), String>, what: &str| {
        let text = result.unwrap_err();
        assert!(text.contains(what), "{text}");
    };
    says(
        call(None, &ids, true, recv()),
        "needs a context with a group",
    );
    says(
        call(Some(&mut session), &ids, false, recv()),
        "`atomic_counters`",
    );
    says(
        call(Some(&mut session), &elsewhere, true, recv()),
        "topk_ids",
    );
    let swapped = [tables.recv[1], tables.recv[0]];
    says(
        call(Some(&mut session), &ids, true, TensorView::host(&swapped)),
        "`recv_ptrs`",
    );
    let on_device: DeviceBuffer<u64> = device.alloc_filled(2, 0).unwrap();
    let table = TensorView::input(&on_device, [2]).unwrap();
    says(
        call(Some(&mut session), &ids, true, table),
        "`recv_ptrs` must be in host memory",
    );
    let mut other = EpSession::new(EpGroup::new(&device, config(6)).unwrap());
    says(call(Some(&mut other), &ids, true, recv()), "`n_experts`");

    // And the right call is accepted; a second one, before anybody received, is not.
    call(Some(&mut session), &ids, true, recv()).unwrap();
    says(
        call(Some(&mut session), &ids, true, recv()),
        "cannot begin round 1",
    );
    let error = OpContext::with_ranks(&stream, &mut session, 2).unwrap_err();
    assert!(
        matches!(error, OpError::NoSuchRank { rank: 2, ranks: 2 }),
        "{error}"
    );
}

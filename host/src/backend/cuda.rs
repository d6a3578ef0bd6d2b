//! A GPU as a backend, through the CUDA driver.

use super::images::{self, Code};
use super::{Handle, LaunchConfig};
use crate::error::DeviceError;
use cuda_driver::extra::{
    self, CaptureMode, DriverError, FunctionAttribute, GraphExec, LaunchAttributes,
    TensorMapDataType, TensorMapInterleave, TensorMapL2Promotion, TensorMapOobFill,
    TensorMapSwizzle, TensorMapTiled, encode_tensor_map_tiled, launch_kernel_ex, load_function,
    set_function_attribute,
};
use cuda_std::launch::KernelArgs;
use cust::context::{Context, CurrentContext};
use cust::device::{Device, DeviceAttribute};
use cust::module::Module;
use cust::sys;
use cust::{CudaFlags, error::CudaError};
use kernels_gpu::scale_tile::{Swizzle, TILE_BYTES};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for writing by the thread that captures a stream, for reading by whoever copies, allocates or
/// frees.
///
/// Blocking copies go through the default stream, which waits for all other streams, and a stream that
/// is being captured cannot be waited for: the driver would fail the copy and spoil the capture. One lock
/// for all GPUs, as captures are short.
static CAPTURES: RwLock<()> = RwLock::new(());

thread_local! {
    /// This thread's hold on [`CAPTURES`] while it captures.
    static CAPTURING: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Waits for captures of other threads; an error if this thread is the one that captures.
fn outside_captures(call: &'static str) -> Result<RwLockReadGuard<'static, ()>, DeviceError> {
    if CAPTURING.with_borrow(Option::is_some) {
        return Err(DeviceError::Capturing { call });
    }
    // There is nothing behind the lock that a panic could have left half done.
    Ok(CAPTURES.read().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) struct CudaBackend {
    // The functions belong to the module, the module to the context: dropped in this order.
    functions: HashMap<&'static str, Function>,
    _module: Module,
    context: Context,
    device: Device,
    /// Dynamic shared memory that each function may have, where that is more than the default. Users of one function
    /// share its attributes, so it is the most that any of them has asked for.
    shared_bytes: Mutex<HashMap<&'static str, usize>>,
    /// Graphs by number. Launching and destroying one need it alone, which the lock gives.
    graphs: Mutex<Graphs>,
    name: String,
    l2_bytes: usize,
    description: String,
    capability: (u32, u32),
    multiprocessors: u32,
}

/// Dynamic shared memory that every kernel may have without asking.
const DEFAULT_SHARED_BYTES: usize = 48 << 10;

#[derive(Default)]
struct Graphs {
    next: u64,
    ready: HashMap<u64, GraphExec>,
}

/// A function of the loaded module.
#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: a function handle is a number to the driver, which may be called from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Names the call in an error of `cust`.
fn cust_error(call: &'static str) -> impl Fn(CudaError) -> DeviceError {
    move |error| driver_error(call, error as u32)
}

fn driver_error(call: &'static str, code: u32) -> DeviceError {
    let message = cuda_driver::error_string(code).map_or_else(
        || "unknown error".into(),
        |text| text.to_string_lossy().into_owned(),
    );
    DeviceError::Driver {
        call,
        code,
        message,
    }
}

/// An error of the driver's functions that `cust` does not have; `call` names one that is missing.
fn extra_error(call: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| match error {
        DriverError::NoDriver(error) => DeviceError::NoDriver(error),
        DriverError::Failed { function, code } => driver_error(function, code),
        error => DeviceError::Driver {
            call,
            code: CudaError::NotSupported as u32,
            message: error.to_string(),
        },
    }
}

/// Calls a function of the driver and names it in the error.
macro_rules! driver {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match sys::$function($($argument),*) as u32 {
            0 => Ok(()),
            code => Err(driver_error(stringify!($function), code)),
        }
    };
}

/// Names the bytes in the error of a driver that has no memory left.
fn out_of_memory(bytes: usize) -> impl Fn(DeviceError) -> DeviceError {
    move |error| match error {
        DeviceError::Driver { code, message, .. } if code == CudaError::OutOfMemory as u32 => {
            DeviceError::OutOfMemory { bytes, message }
        }
        error => error,
    }
}

// Behind the macro, which they use.
mod peer;
mod topology;

pub use topology::{GpuPath, Topology};

impl CudaBackend {
    pub(crate) fn new(ordinal: u32) -> Result<Self, DeviceError> {
        if let Some((reason, command)) = images::MISSING {
            return Err(DeviceError::KernelsMissing { reason, command });
        }
        cuda_driver::driver_available()?;
        cust::init(CudaFlags::empty()).map_err(cust_error("cuInit"))?;
        let count = Device::num_devices().map_err(cust_error("cuDeviceGetCount"))?;
        if ordinal >= count {
            return Err(DeviceError::NoSuchGpu { ordinal, count });
        }
        let device = Device::get_device(ordinal).map_err(cust_error("cuDeviceGet"))?;
        let attribute = |attribute| {
            let value = device.get_attribute(attribute);
            value
                .map_err(cust_error("cuDeviceGetAttribute"))
                .map(|value| value as u32)
        };
        let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        let minor = attribute(DeviceAttribute::ComputeCapabilityMinor)?;
        let multiprocessors = attribute(DeviceAttribute::MultiprocessorCount)?;
        let l2_bytes = attribute(DeviceAttribute::L2CacheSize)? as usize;
        let name = device.name().map_err(cust_error("cuDeviceGetName"))?;
        let Some((image, code)) = images::best_for(major * 10 + minor) else {
            return Err(DeviceError::GpuTooOld {
                name,
                capability: (major, minor),
            });
        };

        let context = Context::new(device).map_err(cust_error("cuDevicePrimaryCtxRetain"))?;
        CurrentContext::set_current(&context).map_err(cust_error("cuCtxSetCurrent"))?;
        let (module, how) = match code {
            Code::Cubin(bytes) => (Module::from_cubin(bytes, &[]), "machine code"),
            Code::Ptx(text) => (Module::from_ptx(text, &[]), "PTX"),
        };
        let module = module.map_err(cust_error("cuModuleLoadDataEx"))?;
        let mut functions = HashMap::new();
        for &entry in images::ENTRY_NAMES {
            let function = module.get_function(entry);
            let function = function.map_err(cust_error("cuModuleGetFunction"))?;
            functions.insert(entry, Function(function.to_raw()));
        }
        Ok(Self {
            functions,
            _module: module,
            context,
            device,
            shared_bytes: Mutex::default(),
            graphs: Mutex::default(),
            l2_bytes,
            description: format!(
                "{name}, compute capability {major}.{minor}, {how} for {}",
                image.target()
            ),
            capability: (major, minor),
            multiprocessors,
            name,
        })
    }

    /// Makes this context the calling thread's. The driver's calls act on the current one.
    fn enter(&self) -> Result<(), DeviceError> {
        CurrentContext::set_current(&self.context).map_err(cust_error("cuCtxSetCurrent"))
    }

    fn graphs(&self) -> MutexGuard<'_, Graphs> {
        // Every critical section leaves the map whole.
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn l2_bytes(&self) -> usize {
        self.l2_bytes
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub(crate) fn description(&self) -> String {
        self.description.clone()
    }

    pub(crate) fn compute_capability(&self) -> (u32, u32) {
        self.capability
    }

    pub(crate) fn alloc(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let _guard = outside_captures("an allocation")?;
        self.enter()?;
        let mut pointer = 0;
        // The driver refuses to allocate nothing.
        // SAFETY: the pointer is written before the call returns.
        unsafe { driver!(cuMemAlloc_v2(&mut pointer, bytes.max(1))) }
            .map_err(out_of_memory(bytes))?;
        Ok(pointer as *mut u8)
    }

    pub(crate) unsafe fn free(&self, pointer: *mut u8) -> Result<(), DeviceError> {
        let _guard = outside_captures("freeing memory")?;
        self.enter()?;
        // SAFETY: the caller's obligation.
        unsafe {
            driver!(cuCtxSynchronize())?;
            driver!(cuMemFree_v2(pointer as u64))
        }
    }

    pub(crate) unsafe fn upload(&self, to: *mut u8, bytes: &[u8]) -> Result<(), DeviceError> {
        let _guard = outside_captures("a copy to the device")?;
        self.enter()?;
        // Our streams synchronise with the default stream, so the copy is ordered after them.
        // SAFETY: the caller's obligation.
        unsafe {
            driver!(cuMemcpyHtoD_v2(
                to as u64,
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        }
    }

    pub(crate) unsafe fn download(
        &self,
        bytes: &mut [u8],
        from: *const u8,
    ) -> Result<(), DeviceError> {
        let _guard = outside_captures("a copy from the device")?;
        self.enter()?;
        // SAFETY: the caller's obligation.
        unsafe {
            driver!(cuMemcpyDtoH_v2(
                bytes.as_mut_ptr().cast(),
                from as u64,
                bytes.len()
            ))
        }
    }

    pub(crate) unsafe fn fill(
        &self,
        to: *mut u8,
        value: u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let _guard = outside_captures("a fill")?;
        self.enter()?;
        // SAFETY: the caller's obligation.
        unsafe {
            driver!(cuMemsetD8_v2(to as u64, value, bytes))?;
            driver!(cuCtxSynchronize())
        }
    }

    pub(crate) fn create_stream(&self) -> Result<Handle, DeviceError> {
        self.enter()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the handle is written before the call returns.
        unsafe { driver!(cuStreamCreate(&mut stream, 0))? };
        Ok(Handle(stream as u64))
    }

    pub(crate) fn destroy_stream(&self, stream: Handle) {
        let stream = stream.0 as sys::CUstream;
        // A failure here is one of earlier work; whoever waits for that work is told.
        // SAFETY: the handle came from `create_stream` and is not used again.
        let _ = self.enter().and_then(|()| unsafe {
            driver!(cuStreamSynchronize(stream))?;
            driver!(cuStreamDestroy_v2(stream))
        });
    }

    pub(crate) fn synchronize(&self, stream: Handle) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the handle came from `create_stream`.
        unsafe { driver!(cuStreamSynchronize(stream.0 as sys::CUstream)) }
    }

    pub(crate) fn record(&self, stream: Handle, timed: bool) -> Result<Handle, DeviceError> {
        self.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = match timed {
            true => sys::CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: the event is written before the call returns.
        unsafe { driver!(cuEventCreate(&mut event, flags as u32))? };
        let handle = Handle(event as u64);
        // SAFETY: both handles are live.
        unsafe { driver!(cuEventRecord(event, stream.0 as sys::CUstream)) }
            .inspect_err(|_| self.destroy_event(handle))?;
        Ok(handle)
    }

    pub(crate) fn wait(&self, stream: Handle, event: Handle) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: both handles are live.
        unsafe {
            driver!(cuStreamWaitEvent(
                stream.0 as sys::CUstream,
                event.0 as sys::CUevent,
                0
            ))
        }
    }

    pub(crate) fn elapsed_ms(&self, from: Handle, to: Handle) -> Result<f32, DeviceError> {
        self.enter()?;
        let (from, to) = (from.0 as sys::CUevent, to.0 as sys::CUevent);
        let mut milliseconds = 0.0;
        // SAFETY: both handles are live events.
        unsafe {
            driver!(cuEventSynchronize(from))?;
            driver!(cuEventSynchronize(to))?;
            driver!(cuEventElapsedTime(&mut milliseconds, from, to))?;
        }
        Ok(milliseconds)
    }

    pub(crate) fn destroy_event(&self, event: Handle) {
        // SAFETY: the handle came from `record` and is not used again.
        let _ = self
            .enter()
            .and_then(|()| unsafe { driver!(cuEventDestroy_v2(event.0 as sys::CUevent)) });
    }

    pub(crate) fn begin_capture(&self, stream: Handle) -> Result<(), DeviceError> {
        if CAPTURING.with_borrow(Option::is_some) {
            let call = "Stream::capture";
            return Err(DeviceError::Capturing { call });
        }
        self.enter()?;
        let guard = CAPTURES.write().unwrap_or_else(PoisonError::into_inner);
        // What other threads launch does not concern the recording.
        let mode = CaptureMode::ThreadLocal;
        // SAFETY: the handle came from `create_stream`.
        unsafe { extra::begin_capture(stream.0 as extra::RawStream, mode) }
            .map_err(extra_error("cuStreamBeginCapture"))?;
        CAPTURING.set(Some(guard));
        Ok(())
    }

    pub(crate) fn end_capture(&self, stream: Handle) -> Result<Handle, DeviceError> {
        self.enter()?;
        // SAFETY: the handle came from `create_stream`, and a capture is under way.
        let graph = unsafe { extra::end_capture(stream.0 as extra::RawStream) };
        CAPTURING.set(None);
        let ready = graph
            .map_err(extra_error("cuStreamEndCapture"))?
            .instantiate()
            .map_err(extra_error("cuGraphInstantiateWithFlags"))?;
        let mut graphs = self.graphs();
        graphs.next += 1;
        let number = graphs.next;
        graphs.ready.insert(number, ready);
        Ok(Handle(number))
    }

    pub(crate) unsafe fn launch_graph(
        &self,
        stream: Handle,
        graph: Handle,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        let graphs = self.graphs();
        // SAFETY: the stream's handle came from `create_stream`; the rest is the caller's obligation.
        unsafe { graphs.ready[&graph.0].launch(stream.0 as extra::RawStream) }
            .map_err(extra_error("cuGraphLaunch"))
    }

    pub(crate) fn destroy_graph(&self, graph: Handle) {
        // The driver acts on the current context.
        if self.enter().is_ok() {
            self.graphs().ready.remove(&graph.0);
        }
    }

    pub(crate) unsafe fn encode_scale_map(
        &self,
        to: *mut u8,
        scales: *mut u8,
        tiles: usize,
        swizzle: Swizzle,
    ) -> Result<(), DeviceError> {
        let row = swizzle.span_bytes();
        let rows = TILE_BYTES as u32 / row;
        let map = encode_tensor_map_tiled(&TensorMapTiled {
            data_type: TensorMapDataType::Uint8,
            global_address: scales as u64,
            global_dim: &[row as u64, rows as u64, tiles as u64],
            global_strides: &[row as u64, TILE_BYTES as u64],
            box_dim: &[row, rows, 1],
            element_strides: &[1, 1, 1],
            interleave: TensorMapInterleave::None,
            swizzle: match swizzle {
                Swizzle::None => TensorMapSwizzle::None,
                Swizzle::B32 => TensorMapSwizzle::Bytes32,
                Swizzle::B64 => TensorMapSwizzle::Bytes64,
                Swizzle::B128 => TensorMapSwizzle::Bytes128,
            },
            l2_promotion: TensorMapL2Promotion::None,
            oob_fill: TensorMapOobFill::Zero,
        })
        .map_err(extra_error("cuTensorMapEncodeTiled"))?;
        let bytes: &[u8] = bytemuck::cast_slice(map.as_words());
        // SAFETY: the caller's obligation.
        unsafe { self.upload(to, bytes) }
    }

    fn function<A: KernelArgs>(&self) -> Result<Function, DeviceError> {
        let name = A::KERNEL.name;
        let function = self.functions.get(name).copied();
        function.ok_or(DeviceError::NoSuchKernel { name })
    }

    /// Lets a function have this much dynamic shared memory, or keeps what it may have if that is more.
    fn allow_shared_bytes(
        &self,
        name: &'static str,
        function: Function,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // An entry is made after the driver has agreed to it.
        let allowed = self.shared_bytes.lock();
        let mut allowed = allowed.unwrap_or_else(PoisonError::into_inner);
        if bytes <= allowed.get(name).copied().unwrap_or(DEFAULT_SHARED_BYTES) {
            return Ok(());
        }
        // SAFETY: a function of the module that is loaded in the context, which the caller has entered.
        unsafe {
            set_function_attribute(
                function.0.cast(),
                FunctionAttribute::MaxDynamicSharedBytes,
                bytes as i32,
            )
        }
        .map_err(extra_error("cuFuncSetAttribute"))?;
        allowed.insert(name, bytes);
        Ok(())
    }

    pub(crate) fn load<A: KernelArgs>(&self) -> Result<(), DeviceError> {
        self.loaded_function::<A>().map(drop)
    }

    /// The function, its code loaded. Its context was entered.
    fn loaded_function<A: KernelArgs>(&self) -> Result<Function, DeviceError> {
        let function = self.function::<A>()?;
        self.enter()?;
        // SAFETY: a function of the module that is loaded in the context, which was entered.
        match unsafe { load_function(function.0.cast()) } {
            // It may load code late all the same, but has no function to prevent that.
            Ok(()) | Err(DriverError::TooOld { .. }) => Ok(function),
            Err(error) => Err(extra_error("cuFuncLoad")(error)),
        }
    }

    pub(crate) fn resident_blocks<A: KernelArgs>(
        &self,
        threads: u32,
        shared_bytes: usize,
    ) -> Result<u32, DeviceError> {
        let function = self.loaded_function::<A>()?;
        self.allow_shared_bytes(A::KERNEL.name, function, shared_bytes)?;
        let mut blocks = 0;
        // SAFETY: as above; the count is written before the call returns.
        unsafe {
            driver!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function.0,
                threads as i32,
                shared_bytes,
            ))?;
        }
        Ok(blocks as u32 * self.multiprocessors)
    }

    pub(crate) unsafe fn launch<A: KernelArgs>(
        &self,
        stream: Handle,
        config: LaunchConfig,
        args: A,
    ) -> Result<(), DeviceError> {
        let function = self.function::<A>()?;
        self.enter()?;
        args.with_params(|params: &mut [*mut c_void]| {
            if config.cooperative {
                let launch = extra::LaunchConfig {
                    grid: (config.blocks, config.block_rows, 1),
                    block: (config.threads, 1, 1),
                    shared_bytes: config.shared_bytes,
                    stream: stream.0 as *mut c_void,
                    attributes: LaunchAttributes {
                        cooperative: true,
                        ..LaunchAttributes::default()
                    },
                };
                // SAFETY: as below.
                return unsafe { launch_kernel_ex(function.0.cast(), &launch, params) }
                    .map_err(extra_error("cuLaunchKernelEx"));
            }
            // SAFETY: `params` points to one value for each parameter of this kernel, of its type;
            // the rest is the caller's obligation.
            unsafe {
                driver!(cuLaunchKernel(
                    function.0,
                    config.blocks,
                    config.block_rows,
                    1,
                    config.threads,
                    1,
                    1,
                    config.shared_bytes,
                    stream.0 as sys::CUstream,
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                ))
            }
        })
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // The module is unloaded next, on whatever thread this is. If that fails, the memory goes with
        // the process.
        let _ = self.enter();
    }
}

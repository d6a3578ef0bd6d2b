//! What a quantizer is measured against, besides its
//! [traffic twin](crate::quantizer::GroupedQuantizerBuilder::traffic_twin).

use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::error::DeviceError;
use crate::stream::Stream;
use kernels_gpu::baseline;

/// A plain copy of 16-byte words, four of them in flight in each thread: what memory gives to a kernel
/// that has nothing else to do.
///
/// # Errors
///
/// [`DeviceError::LengthMismatch`], [`DeviceError::TooLarge`] for 2^31 words or more,
/// [`DeviceError::WrongDevice`], or whatever the driver refuses.
pub fn copy(
    stream: &Stream,
    from: &DeviceBuffer<[u32; 4]>,
    to: &mut DeviceBuffer<[u32; 4]>,
) -> Result<(), DeviceError> {
    stream.device().check_same("the source", from.device())?;
    stream.device().check_same("the target", to.device())?;
    if from.len() != to.len() {
        return Err(DeviceError::LengthMismatch {
            buffer: to.len(),
            host: from.len(),
        });
    }
    let Ok(words) = i32::try_from(from.len()) else {
        return Err(DeviceError::TooLarge {
            elements: from.len(),
            element_bytes: size_of::<[u32; 4]>(),
        });
    };
    let words = words as u32;
    let config = LaunchConfig::line(baseline::copy_grid_size(words), baseline::COPY_THREADS, 0)?;
    let args = baseline::copy::Args {
        from: from.as_ptr().cast(),
        to: to.as_mut_ptr().cast(),
        words,
    };
    // SAFETY: both buffers hold `words` words of 16 bytes, aligned to 16; `&mut` keeps them apart.
    unsafe { stream.launch(config, args) }
}

/// A kernel of one warp that does nothing: what a launch costs.
///
/// # Errors
///
/// Whatever the driver refuses.
pub fn empty(stream: &Stream) -> Result<(), DeviceError> {
    let config = LaunchConfig::line(1, baseline::EMPTY_THREADS, 0)?;
    // SAFETY: the kernel asks for nothing.
    unsafe { stream.launch(config, baseline::empty::Args {}) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn a_copy_is_complete_whatever_its_length() {
        let device = Device::emulator(1);
        let stream = device.create_stream().unwrap();
        for words in [0, 1, 255, 256, 1023, 1024, 1025, 5000] {
            let source: Vec<[u32; 4]> = (0..words).map(|word| [word, !word, 7, word]).collect();
            let from = device.upload(&source).unwrap();
            let mut to = device.alloc_filled(source.len(), 0xEE).unwrap();
            copy(&stream, &from, &mut to).unwrap();
            assert_eq!(to.download().unwrap(), source, "{words} words");
        }
        empty(&stream).unwrap();
        stream.synchronize().unwrap();
    }

    #[test]
    fn a_copy_needs_equal_lengths_and_one_device() {
        let (device, other) = (Device::emulator(1), Device::emulator(1));
        let stream = device.create_stream().unwrap();
        let from = device.upload(&[[1; 4]; 3]).unwrap();
        let mut short = device.alloc(2).unwrap();
        assert!(matches!(
            copy(&stream, &from, &mut short),
            Err(DeviceError::LengthMismatch { buffer: 2, host: 3 })
        ));
        let mut foreign = other.alloc(3).unwrap();
        assert!(matches!(
            copy(&stream, &from, &mut foreign),
            Err(DeviceError::WrongDevice { .. })
        ));
    }
}

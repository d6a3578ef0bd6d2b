//! Printing and assertions.
//!
//! [`print!`](crate::print), [`println!`](crate::println), [`assert_eq!`](crate::assert_eq) and
//! [`assert_ne!`](crate::assert_ne) format on the thread's stack, into at most
//! [`MESSAGE_BYTES`] bytes; what exceeds them is cut off. The published macros formatted on the device
//! heap.
//!
//! Output of a launch goes to a buffer on the device (1 MiB unless the host raises
//! `CU_LIMIT_PRINTF_FIFO_SIZE`), which overwrites its oldest entries and reaches the host's standard
//! output when it synchronises. A single call is not mixed with those of other threads. In the
//! emulator it is collected by the machine.
//!
//! Formatting pulls much code into a kernel, and calls through pointers, so that the driver cannot know
//! how much stack a thread needs: a host that lets kernels print raises `CU_LIMIT_STACK_SIZE` to 8 KiB,
//! or the launch ends with an illegal address. For debugging, not for kernels that ship.

use core::fmt;

/// The longest message, with its end mark.
pub const MESSAGE_BYTES: usize = 512;

#[cfg(target_arch = "nvptx64")]
mod syscalls {
    unsafe extern "C" {
        // The driver defines both when it loads the module.
        pub fn vprintf(format: *const u8, arguments: *const core::ffi::c_void) -> i32;
        pub fn __assertfail(
            message: *const u8,
            file: *const u8,
            line: u32,
            function: *const u8,
            char_size: usize,
        ) -> !;
    }
}

/// A C string on the stack.
#[cfg(any(target_arch = "nvptx64", test))]
struct Message {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
}

#[cfg(any(target_arch = "nvptx64", test))]
impl Message {
    fn format(arguments: fmt::Arguments<'_>) -> Self {
        let mut message = Self {
            bytes: [0; MESSAGE_BYTES],
            len: 0,
        };
        // An error means that the message is full, or that a `Display` gave up: what there is goes out.
        let _ = fmt::Write::write_fmt(&mut message, arguments);
        message
    }
}

#[cfg(any(target_arch = "nvptx64", test))]
impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MESSAGE_BYTES - 1 - self.len;
        let fits = text.floor_char_boundary(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        if fits == text.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

#[doc(hidden)]
pub fn print(arguments: fmt::Arguments<'_>) {
    by_target! {
        gpu: {
            let message = Message::format(arguments);
            let arguments = [message.bytes.as_ptr()];
            // SAFETY: a C format string and the one argument it asks for, which is a C string.
            unsafe { syscalls::vprintf(c"%s".as_ptr().cast(), arguments.as_ptr().cast()) };
        },
        cpu: simt::device::print(arguments),
    }
}

/// `file` ends with a null character.
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn assertion_failed(arguments: fmt::Arguments<'_>, file: &'static str, line: u32) -> ! {
    by_target! {
        gpu: {
            let message = Message::format(arguments);
            // SAFETY: three C strings of single-byte characters.
            unsafe {
                syscalls::__assertfail(message.bytes.as_ptr(), file.as_ptr(), line, c"".as_ptr().cast(), 1)
            }
        },
        cpu: {
            let _ = (file, line);
            simt::device::trap(&std::format!("{arguments}"))
        },
    }
}

/// Prints to the host's standard output. See [`io`](crate::io).
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => {
        $crate::io::print(::core::format_args!($($arg)*))
    };
}

/// [`print!`](crate::print) with a newline at the end.
#[macro_export]
macro_rules! println {
    () => {
        $crate::print!("\n")
    };
    ($($arg:tt)*) => {
        $crate::io::print(::core::format_args!("{}\n", ::core::format_args!($($arg)*)))
    };
}

/// Ends the launch with an assertion failure that names both values, unless they are equal.
///
/// The host gets `CUDA_ERROR_ASSERT`, or the emulator's fault with this place in the source.
#[macro_export]
macro_rules! assert_eq {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) => {
                if !(*left == *right) {
                    $crate::io::assertion_failed(
                        ::core::format_args!(
                            "assertion failed: ({} == {})\nleft : {:?}\nright: {:?}",
                            ::core::stringify!($left),
                            ::core::stringify!($right),
                            left,
                            right,
                        ),
                        ::core::concat!(::core::file!(), "\0"),
                        ::core::line!(),
                    )
                }
            }
        }
    };
}

/// Ends the launch with an assertion failure that names both values, if they are equal.
///
/// The host gets `CUDA_ERROR_ASSERT`, or the emulator's fault with this place in the source.
#[macro_export]
macro_rules! assert_ne {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) => {
                if *left == *right {
                    $crate::io::assertion_failed(
                        ::core::format_args!(
                            "assertion failed: ({} != {})\nleft : {:?}\nright: {:?}",
                            ::core::stringify!($left),
                            ::core::stringify!($right),
                            left,
                            right,
                        ),
                        ::core::concat!(::core::file!(), "\0"),
                        ::core::line!(),
                    )
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::{MESSAGE_BYTES, Message};

    #[test]
    fn messages_are_cut_between_characters_and_ended() {
        let message = Message::format(format_args!("{}-{}", 12, "ab"));
        assert_eq!(&message.bytes[..6], b"12-ab\0");

        let long = "é".repeat(MESSAGE_BYTES);
        let message = Message::format(format_args!("{long}"));
        assert_eq!(message.len, MESSAGE_BYTES - 2);
        assert_eq!(
            core::str::from_utf8(&message.bytes[..message.len]),
            Ok(&long[..message.len])
        );
        assert_eq!(message.bytes[message.len], 0);
    }
}

/*
 * Preloaded into user-mode-linux. Its kernel writes the floating-point registers of a process before each time that the
 * process runs, and reads them after it.
 *
 * It starts on processors with more register state than it supports. Linux accepts the extended registers of a process
 * (NT_X86_XSTATE) from a debugger only in full. User-mode-linux 6.1 has a buffer of fixed size for them, which is too
 * short on processors with AMX: each attempt fails with EFAULT ("ptrace set fp regs failed"). Reading into a short buffer
 * works. Therefore this reads all registers, overwrites the part that user-mode-linux has, and writes all of them.
 *
 * It is faster. Registers that a process has anyway are not written: most system calls do not change them.
 */
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Larger than any processor's state: AMX alone has 8 KiB. */
static char whole[64 * 1024];

/* The part of a process's registers that user-mode-linux read or wrote last, unless the process has run since. */
static struct registers {
	long pid;
	size_t length;
	char bytes[4096];
} known[1024];

static struct registers *registers_of(long pid)
{
	return &known[pid % (sizeof known / sizeof *known)];
}

static void remember(long pid, const struct iovec *part)
{
	struct registers *registers = registers_of(pid);

	registers->pid = part->iov_len <= sizeof registers->bytes ? pid : 0;
	if (registers->pid) {
		registers->length = part->iov_len;
		memcpy(registers->bytes, part->iov_base, part->iov_len);
	}
}

static int has(long pid, const struct iovec *part)
{
	const struct registers *registers = registers_of(pid);

	return registers->pid == pid && registers->length == part->iov_len &&
	       memcmp(registers->bytes, part->iov_base, part->iov_len) == 0;
}

static int set_registers(long pid, const struct iovec *part)
{
	struct iovec all = { whole, sizeof whole };

	if (syscall(SYS_ptrace, (long)PTRACE_GETREGSET, pid, (long)NT_X86_XSTATE, &all) == -1)
		return -1;
	memcpy(whole, part->iov_base, part->iov_len < all.iov_len ? part->iov_len : all.iov_len);
	return syscall(SYS_ptrace, (long)PTRACE_SETREGSET, pid, (long)NT_X86_XSTATE, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	long pid, address, result, word = 0;
	void *data;

	va_start(arguments, request);
	pid = va_arg(arguments, long);
	address = va_arg(arguments, long);
	data = va_arg(arguments, void *);
	va_end(arguments);

	/* The system call stores the result where `data` points; the C library's function returns it. */
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		result = syscall(SYS_ptrace, (long)request, pid, address, &word);
		if (result == -1)
			return -1;
		errno = 0;
		return word;
	}
	if (request == PTRACE_SETREGSET && address == NT_X86_XSTATE && has(pid, data))
		return 0;
	result = syscall(SYS_ptrace, (long)request, pid, address, data);
	if (result == -1 && errno == EFAULT && request == PTRACE_SETREGSET && address == NT_X86_XSTATE)
		result = set_registers(pid, data);
	if (result == 0 && (request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) && address == NT_X86_XSTATE)
		remember(pid, data);
	else if (request != PTRACE_GETREGS && request != PTRACE_SETREGS)
		registers_of(pid)->pid = 0;
	return result;
}

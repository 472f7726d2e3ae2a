/*
 * Renames Linux's calls to Pagewire's, so that an existing source runs on Pagewire unchanged:
 *
 *     cc -include pagewire/posix.h prog.c -lpagewire
 *     PAGEWIRE="tap=pw0,addr=10.77.0.2/24,host-addr=10.77.0.1/24" ./prog
 *
 * Without PAGEWIRE every call is the kernel's. The renaming is of symbols, by a pragma of GCC's and Clang's: fields,
 * methods and variables with such names stay, pointers to the functions are renamed, too. Compile every file of the
 * program so, and the libraries that use its sockets (libevent, libuv): others hold a number with which the kernel
 * can do nothing (EBADF).
 *
 * Include this first, before any header of the system. Fortified calls (_FORTIFY_SOURCE) have other names, and are
 * switched off.
 */
#ifndef PAGEWIRE_POSIX_H
#define PAGEWIRE_POSIX_H

#undef _FORTIFY_SOURCE
#define _FORTIFY_SOURCE 0

/*
 * Functions that the C library's headers rename themselves, for _FILE_OFFSET_BITS=64: the first name wins. The types
 * are those of 64-bit Linux.
 */
#ifdef __cplusplus
extern "C" {
#define PW_NOTHROW noexcept
#else
#define PW_NOTHROW
#endif
struct stat;
int fcntl(int, int, ...) __asm__("pw_fcntl");
int fstat(int, struct stat *) PW_NOTHROW __asm__("pw_fstat");
void *mmap(void *, __SIZE_TYPE__, int, int, int, long) PW_NOTHROW __asm__("pw_mmap");
long sendfile(int, int, long *, __SIZE_TYPE__) PW_NOTHROW __asm__("pw_sendfile");
#undef PW_NOTHROW
#ifdef __cplusplus
}
#endif

#pragma redefine_extname socket pw_socket
#pragma redefine_extname bind pw_bind
#pragma redefine_extname listen pw_listen
#pragma redefine_extname accept pw_accept
#pragma redefine_extname accept4 pw_accept4
#pragma redefine_extname connect pw_connect
#pragma redefine_extname shutdown pw_shutdown
#pragma redefine_extname getsockname pw_getsockname
#pragma redefine_extname getpeername pw_getpeername
#pragma redefine_extname getsockopt pw_getsockopt
#pragma redefine_extname setsockopt pw_setsockopt
#pragma redefine_extname read pw_read
#pragma redefine_extname readv pw_readv
#pragma redefine_extname recv pw_recv
#pragma redefine_extname recvfrom pw_recvfrom
#pragma redefine_extname recvmsg pw_recvmsg
#pragma redefine_extname recvmmsg pw_recvmmsg
#pragma redefine_extname write pw_write
#pragma redefine_extname writev pw_writev
#pragma redefine_extname send pw_send
#pragma redefine_extname sendto pw_sendto
#pragma redefine_extname sendmsg pw_sendmsg
#pragma redefine_extname sendmmsg pw_sendmmsg
#pragma redefine_extname sendfile64 pw_sendfile
#pragma redefine_extname splice pw_splice
#pragma redefine_extname close pw_close
#pragma redefine_extname dup pw_dup
#pragma redefine_extname dup2 pw_dup2
#pragma redefine_extname dup3 pw_dup3
#pragma redefine_extname fcntl64 pw_fcntl
#pragma redefine_extname ioctl pw_ioctl
#pragma redefine_extname fstat64 pw_fstat
#pragma redefine_extname fdopen pw_fdopen
#pragma redefine_extname fileno pw_fileno
#pragma redefine_extname poll pw_poll
#pragma redefine_extname ppoll pw_ppoll
#pragma redefine_extname select pw_select
#pragma redefine_extname pselect pw_pselect
#pragma redefine_extname epoll_create pw_epoll_create
#pragma redefine_extname epoll_create1 pw_epoll_create1
#pragma redefine_extname epoll_ctl pw_epoll_ctl
#pragma redefine_extname epoll_wait pw_epoll_wait
#pragma redefine_extname epoll_pwait pw_epoll_pwait
#pragma redefine_extname epoll_pwait2 pw_epoll_pwait2
#pragma redefine_extname mmap64 pw_mmap
#pragma redefine_extname munmap pw_munmap
#pragma redefine_extname madvise pw_madvise

#endif /* PAGEWIRE_POSIX_H */

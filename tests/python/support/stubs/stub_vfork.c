/* A process in an uninterruptible wait (state D): the parent of a vfork() child that has not
 * executed a program. SIGKILL can end this one. */
#include <unistd.h>

int main(void) {
  if (vfork() == 0) {
    pause();
    _exit(0);
  }
  return 0;
}

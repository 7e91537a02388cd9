// elastic-guardian: starts, reaps and, when its agent is gone, kills a node's workers.

int main() { return 0; }
